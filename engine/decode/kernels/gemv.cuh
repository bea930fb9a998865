// Matrix times vector, for a batch of one: each weight is read once, through the warp's pipeline. Part of single.cu.

// Where the i-th of n even ranges of `count` things begins; ranges differ by one at most.
__device__ __forceinline__ int range_start(int count, int i, int n) { return (int)((long long)count * i / n); }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// A matrix row of K weights is multiplied a unit at a time. A unit is the largest equal part of the row that fits a
// tile, or a block where a block has more weights than a warp takes in one load each. A tile is whole units.
template <class F, int K>
struct Units {
  __host__ __device__ static constexpr int count() {
    if (F::BLOCK > 32 * VEC) return K / F::BLOCK;
    int n = 1;
    while (K % n || K / n % F::BLOCK || F::bytes(K / n) > TILE_BYTES) ++n;
    return n;
  }
  static constexpr int COUNT = count(), WEIGHTS = K / COUNT, BYTES = F::bytes(WEIGHTS), IN_TILE = TILE_BYTES / BYTES;
  static_assert(IN_TILE >= 1, "a unit fits a tile");
};
constexpr int MAX_OWNED = ceil_div(HIDDEN, BLOCKS);                      // elements of the residual stream, a block
constexpr int MAX_WARP_ROWS = ceil_div(ceil_div(INTER, BLOCKS), WARPS);  // rows of the gate or up matrix, a warp
// Partial sums of a projection: one a unit, or, where units are blocks, one of all the units that a warp has of a row.
constexpr bool SUM_BY_WARP = Format::BLOCK > 32 * VEC;
constexpr int WARP_SUMS = MAX_OWNED / WARPS + 2;
constexpr int MAX_COUNT = Units<Format, INTER>::COUNT > Units<Format, Q_SIZE>::COUNT ? Units<Format, INTER>::COUNT
                                                                                   : Units<Format, Q_SIZE>::COUNT;
constexpr int MAX_SUMS = SUM_BY_WARP ? WARPS * WARP_SUMS : MAX_OWNED * MAX_COUNT;
static_assert(HIDDEN >= BLOCKS && INTER >= BLOCKS, "every block publishes a part of x, qkv and act (exchange.cuh)");

struct Range { int first, count; };

struct Shared {
  Range ranges[WARPS][5];     // a warp's matrix rows of qkv, gate and up, head (0, 2, 4), and units of out, down (1, 3)
  Pipeline spilled[WARPS];    // attention needs the registers
  union {                     // what norm_input makes
    Format::Input<HIDDEN> x;
    HeadFormat::Input<HIDDEN> head_x;
  };
  float residual[MAX_OWNED];  // the block's elements of the residual stream
  __align__(16) float square[WARPS];  // the warps' sums of its squares
  float gate[WARPS][MAX_WARP_ROWS];
  __align__(16) float q[GROUP][DIM];
  __align__(16) u16 key[DIM], value[DIM];  // of the new position
  float m[WARPS][GROUP], l[WARPS][GROUP];
  union {
    float o[WARPS][GROUP][DIM];
    struct {
      union { Format::Input<Q_SIZE> attended; Format::Input<INTER> act; };
      float sums[MAX_SUMS];
    } project;
  };
};
static_assert(sizeof(Shared) + sizeof(u64) * WARPS * STAGES <= STATIC_SHARED, "static shared memory exceeds its share");

// The residual stream times the norm's weights into shared memory, and the sum of its squares: RMSNorm without its
// scale, which is applied to the products. The weights are loaded in advance, 4 a thread at a time.
constexpr int NORM_LOADS = ceil_div(HIDDEN / 4, THREADS);
struct NormWeights { uint2 of[NORM_LOADS]; };
__device__ __forceinline__ NormWeights norm_weights(const u16* weight) {
  NormWeights w;
  const int t = opaque_thread();
#pragma unroll
  for (int j = 0; j < NORM_LOADS; ++j) w.of[j] = ((const uint2*)weight)[min(j * THREADS + t, HIDDEN / 4 - 1)];
  return w;
}
template <class F>
__device__ __forceinline__ void norm_input(const SingleArgs& s, const NormWeights& w, bool first, u32 epoch,
                                           typename F::template Input<HIDDEN>& input, Shared& sh) {
  uint4 words[NORM_LOADS];
  if (!first) poll_all(words, s.x, HIDDEN / 4);
  float square = 0.f;
  const int t = opaque_thread();
#pragma unroll
  for (int j = 0; j < NORM_LOADS; ++j) {
    const int i = j * THREADS + t;
    if (i >= HIDDEN / 4) continue;
    float4 v;
    if (first) v = unpack4(((const uint2*)s.x_in)[i]);
    else v = receive(s, words[j], s.x + i * 4, epoch);
    square = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, square))));
    F::put(input, i, make_float4(v.x * low(w.of[j].x), v.y * high(w.of[j].x), v.z * low(w.of[j].y),
                                 v.w * high(w.of[j].y)));
  }
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) sh.square[threadIdx.x >> 5] = square;
  __syncthreads();
}
__device__ __forceinline__ float norm_scale(const Shared& sh) {  // recomputed for each matrix row: kept, it would spill
  float total = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; ++k) total += sh.square[k];
  return rsqrtf(total * (1.f / HIDDEN) + EPS);
}

// This lane's part of the product of the warp's next unit with inputs from the VEC * at-th on. `in_tile` counts units of
// the tile and begins at 0; `last`: of the warp's part of the matrix.
template <class F, int K>
__device__ __forceinline__ float next_unit(const SingleArgs& s, Pipeline& p, const typename F::template Input<K>& input,
                                           int at, int& in_tile, bool last) {
  using U = Units<F, K>;
  if (in_tile == 0) {
    wait(p);
#if __CUDA_ARCH__ < 900
    if (F::LANES_SHARE) __syncwarp();
#endif
  }
  const uint4* weights = (const uint4*)(tile_at(p.released) + in_tile * U::BYTES);
  const float part = F::template dot<U::WEIGHTS>(weights, input, at);
  if (++in_tile == U::IN_TILE || last) {
    release(s, p);
    in_tile = 0;
  }
  return part;
}

// The warp's next `rows` matrix rows of HIDDEN weights times the normed input; done(j, sum) takes each product.
template <class F, class Done>
__device__ __forceinline__ void gemv_hidden(const SingleArgs& s, Pipeline& p, int rows,
                                            const typename F::template Input<HIDDEN>& input, const Shared& sh,
                                            Done done) {
  using U = Units<F, HIDDEN>;
  int in_tile = 0;
#pragma unroll 1
  for (int j = 0; j < rows; ++j) {
    float sum = 0.f;
#pragma unroll(U::IN_TILE > 1 ? 1 : U::COUNT)
    for (int u = 0; u < U::COUNT; ++u)
      sum += next_unit<F, HIDDEN>(s, p, input, u * (U::WEIGHTS / VEC), in_tile, u + 1 == U::COUNT && j + 1 == rows);
    done(j, norm_scale(sh) * warp_sum(sum));
  }
}

// K bf16 values of other blocks into shared memory.
template <class F, int K>
__device__ __forceinline__ void projection_input(const SingleArgs& s, const u32* from, u32 epoch,
                                                 typename F::template Input<K>& input) {
  constexpr int LOADS = ceil_div(K / 4, THREADS);
  uint4 words[LOADS];
  poll_all(words, from, K / 4);
  const int t = opaque_thread();
#pragma unroll
  for (int j = 0; j < LOADS; ++j) {
    const int i = j * THREADS + t;
    if (i >= K / 4) continue;
    const uint4 w = receive_words(s, words[j], from + i * 4, epoch);
    F::put(input, i, make_uint2(__byte_perm(w.x, w.y, 0x7632), __byte_perm(w.z, w.w, 0x7632)));
  }
  __syncthreads();
}

// x += W @ input for the block's rows of W [HIDDEN, K], published in `epoch`; the input is from the one before. A warp
// takes units [first, last) of those rows; the parts of a row are summed in shared memory.
template <class F, int K>
__device__ __forceinline__ void project(const SingleArgs& s, Pipeline& p, const u32* from, Range units, u32 epoch,
                                        typename F::template Input<K>& input, Shared& sh) {
  using U = Units<F, K>;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, base = range_start(HIDDEN, blockIdx.x, BLOCKS);
  const int owned = range_start(HIDDEN, blockIdx.x + 1, BLOCKS) - base, end = units.first + units.count;
  projection_input<F, K>(s, from, epoch - 1, input);
  int in_tile = 0;
  float sum = 0.f;
#pragma unroll 1
  for (int i = units.first; i < end; ++i) {
    const int row = i / U::COUNT, unit = i % U::COUNT;
    sum += next_unit<F, K>(s, p, input, unit * (U::WEIGHTS / VEC), in_tile, i + 1 == end);
    if (SUM_BY_WARP && unit + 1 < U::COUNT && i + 1 < end) continue;
    sum = warp_sum(sum);
    if (lane == 0) sh.project.sums[SUM_BY_WARP ? warp * WARP_SUMS + row - units.first / U::COUNT : i] = sum;
    sum = 0.f;
  }
  arrive(s);  // the count may run ahead of the values: consumers check the epoch of each
  for (int r = threadIdx.x; r < owned; r += THREADS) {
    float sum = sh.residual[r];
    if (SUM_BY_WARP) {  // unit i is of the last warp whose range does not begin behind it
      const int all = owned * U::COUNT, unit = r * U::COUNT;
      for (int w = ((unit + 1) * WARPS - 1) / all; w <= ((unit + U::COUNT) * WARPS - 1) / all; ++w)
        sum += sh.project.sums[w * WARP_SUMS + r - range_start(all, w, WARPS) / U::COUNT];
    } else {
      for (int k = 0; k < U::COUNT; ++k) sum += sh.project.sums[r * U::COUNT + k];
    }
    sh.residual[r] = sum;
    publish(s.x + base + r, ll_word(sum, epoch));
  }
}
