// Matrix times vector, for a batch of one: each weight is read once, through the warp's pipeline. Part of single.cu.

// Where the i-th of n even ranges of `count` things begins; ranges differ by one at most.
__device__ __forceinline__ int range_start(int count, int i, int n) { return (int)((long long)count * i / n); }

// Tiles of a matrix row of k weights: the fewest that are equal, whole blocks, and no larger than TILE_BYTES.
template <class F>
__host__ __device__ constexpr int tiles_of(int k) {
  int n = 1;
  while (k % n || k / n % F::BLOCK || F::bytes(k / n) > TILE_BYTES) ++n;
  return n;
}
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int MAX_OWNED = ceil_div(HIDDEN, BLOCKS);                      // elements of the residual stream, a block
constexpr int MAX_WARP_ROWS = ceil_div(ceil_div(INTER, BLOCKS), WARPS);  // rows of the gate or up matrix, a warp
constexpr int MAX_INPUT = INTER > Q_SIZE ? INTER : Q_SIZE;
constexpr int MAX_TILES = tiles_of<Format>(INTER) > tiles_of<Format>(Q_SIZE) ? tiles_of<Format>(INTER)
                                                                             : tiles_of<Format>(Q_SIZE);
static_assert(HIDDEN >= BLOCKS && INTER >= BLOCKS, "every block publishes a part of x, qkv and act (exchange.cuh)");

struct Range { int first, count; };

struct Shared {
  Range ranges[WARPS][5];     // a warp's matrix rows of qkv, gate and up, head (0, 2, 4), and tiles of out, down (1, 3)
  Pipeline spilled[WARPS];    // attention needs the registers
  uint4 x[HIDDEN / VEC];      // what norm_input makes, packed bf16
  float residual[MAX_OWNED];  // the block's elements of the residual stream
  __align__(16) float square[WARPS];  // the warps' sums of its squares
  float gate[WARPS][MAX_WARP_ROWS];
  __align__(16) float q[GROUP][DIM];
  __align__(16) u16 key[DIM], value[DIM];  // of the new position
  float m[WARPS][GROUP], l[WARPS][GROUP];
  union {
    float o[WARPS][GROUP][DIM];
    struct { uint4 input[MAX_INPUT / VEC]; float sums[MAX_OWNED * MAX_TILES]; } project;  // input: packed bf16
  };
};
static_assert(sizeof(Shared) + sizeof(u64) * WARPS * STAGES <= STATIC_SHARED, "static shared memory exceeds its share");

// The residual stream times the norm's weights into shared memory, packed, and the sum of its squares: RMSNorm without
// its scale, which is applied to the products. The weights are loaded in advance, 4 a thread at a time.
constexpr int NORM_LOADS = ceil_div(HIDDEN / 4, THREADS);
struct NormWeights { uint2 of[NORM_LOADS]; };
__device__ __forceinline__ NormWeights norm_weights(const u16* weight) {
  NormWeights w;
  const int t = opaque_thread();
#pragma unroll
  for (int j = 0; j < NORM_LOADS; ++j) w.of[j] = ((const uint2*)weight)[min(j * THREADS + t, HIDDEN / 4 - 1)];
  return w;
}
__device__ __forceinline__ void norm_input(const SingleArgs& s, const NormWeights& w, bool first, u32 epoch,
                                           Shared& sh) {
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
    ((uint2*)sh.x)[i] = make_uint2(pack(v.x * low(w.of[j].x), v.y * high(w.of[j].x)),
                                   pack(v.z * low(w.of[j].y), v.w * high(w.of[j].y)));
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

// The warp's next `rows` matrix rows of HIDDEN weights times the normed input; done(j, sum) takes each product.
template <class F, class Done>
__device__ __forceinline__ void gemv_hidden(const SingleArgs& s, Pipeline& p, int rows, const Shared& sh, Done done) {
  constexpr int TILES = tiles_of<F>(HIDDEN), N = HIDDEN / TILES;
#pragma unroll 1
  for (int j = 0; j < rows; ++j) {
    float sum = 0.f;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      sum += F::template dot<N>(wait(p), sh.x + tile * (N / VEC));
      release(s, p);
    }
    done(j, norm_scale(sh) * warp_sum(sum));
  }
}

// K bf16 values of other blocks into shared memory, packed.
template <int K>
__device__ __forceinline__ void projection_input(const SingleArgs& s, const u32* from, u32 epoch, Shared& sh) {
  constexpr int LOADS = ceil_div(K / 4, THREADS);
  uint4 words[LOADS];
  poll_all(words, from, K / 4);
  const int t = opaque_thread();
#pragma unroll
  for (int j = 0; j < LOADS; ++j) {
    const int i = j * THREADS + t;
    if (i >= K / 4) continue;
    const uint4 w = receive_words(s, words[j], from + i * 4, epoch);
    ((uint2*)sh.project.input)[i] = make_uint2(__byte_perm(w.x, w.y, 0x7632), __byte_perm(w.z, w.w, 0x7632));
  }
  __syncthreads();
}

// x += W @ input for the block's rows of W [HIDDEN, K], published in `epoch`; the input is from the one before. A warp
// takes tiles [first, last) of those rows; the tiles of a row are summed in shared memory.
template <class F, int K>
__device__ __forceinline__ void project(const SingleArgs& s, Pipeline& p, const u32* input, int first, int last,
                                        u32 epoch, Shared& sh) {
  constexpr int TILES = tiles_of<F>(K), N = K / TILES;
  const int lane = threadIdx.x & 31, base = range_start(HIDDEN, blockIdx.x, BLOCKS);
  const int owned = range_start(HIDDEN, blockIdx.x + 1, BLOCKS) - base;
  projection_input<K>(s, input, epoch - 1, sh);
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    float sum = F::template dot<N>(wait(p), sh.project.input + i % TILES * (N / VEC));
    release(s, p);
    sum = warp_sum(sum);
    if (lane == 0) sh.project.sums[i] = sum;
  }
  arrive(s);  // the count may run ahead of the values: consumers check the epoch of each
  for (int r = threadIdx.x; r < owned; r += THREADS) {
    float sum = sh.residual[r];
    for (int k = 0; k < TILES; ++k) sum += sh.project.sums[r * TILES + k];
    sh.residual[r] = sum;
    publish(s.x + base + r, ll_word(sum, epoch));
  }
}
