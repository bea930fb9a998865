// Matrix-vector products for batch size 1. Each weight is read once, through the warp's pipeline. Part of single.cu.

using HeadFormat = HEAD_FORMAT;

// Start of the i-th of n even ranges over `count` items. Range sizes differ by at most one.
__device__ __forceinline__ int range_start(int count, int i, int n) { return (int)((long long)count * i / n); }

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

constexpr int MAX_OWNED = ceil_div(HIDDEN, BLOCKS);                      // elements of the residual stream per block
constexpr int MAX_WARP_ROWS = ceil_div(ceil_div(INTER, BLOCKS), WARPS);  // rows of the gate or up matrix per warp
static_assert(HIDDEN >= BLOCKS && INTER >= BLOCKS, "every block publishes a part of x, qkv and act (exchange.cuh)");
static_assert(MAX_OWNED <= THREADS, "a thread has an element of the residual stream");

// Distribution of a block's rows of a projection [HIDDEN, K] over its warps, in parts of rows whose sums are added.
//
// Bf16: a part is one tile, the largest equal division of a row that fits into a tile. A warp takes a range of all
// parts, counted row by row. Quantised formats: a warp takes the same part of every row in a range, so that it can hold
// its inputs.
template <class F, int K>
struct Parts {
  __host__ __device__ static constexpr int tiles() {
    int n = 1;
    while (K % n || K / n % F::BLOCK || F::bytes(K / n) > TILE_BYTES) ++n;
    return n;
  }
  static constexpr int ROW_BLOCKS = K / F::BLOCK, MAX_HELD = HIDDEN / F::BLOCK;
  // Blocks that a warp multiplies if rows have n parts; a huge number if it could not hold their inputs.
  __host__ __device__ static constexpr int cost(int n) {
    return ceil_div(ROW_BLOCKS, n) > MAX_HELD ? 1 << 30 : ceil_div(ROW_BLOCKS, n) * ceil_div(MAX_OWNED, WARPS / n);
  }
  __host__ __device__ static constexpr int shares() {
    int best = WARPS;
    for (int n = WARPS; n; n /= 2)
      if (cost(n) <= cost(best)) best = n;
    return best;
  }
  static constexpr int COUNT = is_quantised<F>() ? shares() : tiles();
  static constexpr int WEIGHTS = K / COUNT;                 // per part, with Bf16
  static constexpr int HELD = ceil_div(ROW_BLOCKS, COUNT);  // maximum blocks per part, with a quantised format
  static_assert(!is_quantised<F>() || cost(COUNT) < 1 << 30, "no warp can hold its inputs");
};
template <class F> __host__ __device__ constexpr int max_parts() {
  return Parts<F, INTER>::COUNT > Parts<F, Q_SIZE>::COUNT ? Parts<F, INTER>::COUNT : Parts<F, Q_SIZE>::COUNT;
}

struct Range { int first, count; };

struct Shared {
  Range ranges[WARPS][5];     // a warp's rows of qkv, gate and up, head (0, 2, 4), and warp_parts of out, down (1, 3)
  Pipeline spilled[WARPS];    // during attention, which needs the registers
  union {                     // output of norm_input
    Format::Input<HIDDEN> x;
    HeadFormat::Input<HIDDEN> head_x;
  };
  float residual[MAX_OWNED];  // the block's elements of the residual stream
  __align__(16) float square[WARPS];  // sum of its squares, per warp
  float gate[WARPS][MAX_WARP_ROWS];
  __align__(16) float q[GROUP][DIM];
  __align__(16) u16 key[DIM], value[DIM];  // of the new position
  float m[WARPS][GROUP], l[WARPS][GROUP];
  union {
    float o[WARPS][GROUP][DIM];
    struct {
      union { Format::Input<Q_SIZE> attended; Format::Input<INTER> act; };
      float sums[MAX_OWNED * max_parts<Format>()];
    } project;
  };
};
static_assert(sizeof(Shared) + sizeof(u64) * WARPS * STAGES <= STATIC_SHARED, "static shared memory exceeds its share");

// RMSNorm without its scale, which is applied to the products: writes the residual stream times the norm's weights to
// shared memory, and sums its squares. The weights are loaded in advance, 4 per thread at a time.
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
__device__ __forceinline__ float norm_scale(const Shared& sh) {  // recomputed per row: kept, it would spill
  float total = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; ++k) total += sh.square[k];
  return rsqrtf(total * (1.f / HIDDEN) + EPS);
}

// Loads the lane's inputs for `count` blocks, at most C, from block `first` on, times `scale`.
template <class F, int K, int C>
__device__ __forceinline__ void hold(HeldInput<C>& x, const FixedInput<K>& input, int first, int count, float scale) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < 2 * C; ++i) {
    const int load = (first * 2 + (i < 2 * count ? i : 0)) * 32 + lane;
    x.values[i] = input.values[load];
    x.scale[i] = input.scale[load] * scale;
  }
}
// Scales of a matrix's rows of K weights, from row `first` on.
template <class F, int K>
struct RowScales {
  const u8* first;
  __device__ __forceinline__ RowScales(const u8* matrix, int first)
      : first(matrix + first * F::row(K) + F::bytes(K)) {}
  __device__ __forceinline__ float of(int row) const {
    if constexpr (F::ROW_SCALE) return load_nc4(first + row * F::row(K));
    return 1.f;
  }
};

// Product of `count` blocks of a matrix row, the warp's next tiles, with the held inputs.
template <class F, int C>
__device__ __forceinline__ float multiply(const SingleArgs& s, Pipeline& p, const HeldInput<C>& x, int count) {
  constexpr int BYTES = F::bytes(F::BLOCK), IN_TILE = TILE_BYTES / BYTES;
  float sum = 0.f;
#pragma unroll
  for (int b = 0; b < C; ++b) {
    if (b >= count) break;
    if (b % IN_TILE == 0) {
      if (b) release(s, p);
      wait(p);
#if __CUDA_ARCH__ < 900
      __syncwarp();  // for bytes that other lanes copied
#endif
    }
    sum += F::dot((const uint4*)(tile_at(p.released) + b % IN_TILE * BYTES), x, b);
  }
  release(s, p);
  return warp_sum(sum);
}

// The normed input, for products with rows of HIDDEN weights.
template <class F, bool = is_quantised<F>()>
struct Normed {
  HeldInput<HIDDEN / F::BLOCK> x;
  __device__ __forceinline__ explicit Normed(const FixedInput<HIDDEN>& input, const Shared& sh) {
    hold<F>(x, input, 0, HIDDEN / F::BLOCK, norm_scale(sh) * F::UNIT);
  }
  __device__ __forceinline__ float multiply_row(const SingleArgs& s, Pipeline& p) const {
    return multiply<F>(s, p, x, HIDDEN / F::BLOCK);
  }
};
template <class F>
struct Normed<F, false> {
  const typename F::template Input<HIDDEN>& input;
  const Shared& sh;
  __device__ __forceinline__ Normed(const typename F::template Input<HIDDEN>& input, const Shared& sh)
      : input(input), sh(sh) {}
  __device__ __forceinline__ float multiply_row(const SingleArgs& s, Pipeline& p) const {
    using P = Parts<F, HIDDEN>;
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < P::COUNT; ++part) {
      wait(p);
      sum += F::template dot<P::WEIGHTS>((const uint4*)tile_at(p.released), input, part * (P::WEIGHTS / VEC));
      release(s, p);
    }
    return norm_scale(sh) * warp_sum(sum);
  }
};

// Multiplies the warp's next `rows` matrix rows of HIDDEN weights by the normed input. done(j, sum) receives each
// product.
template <class F, class Done>
__device__ __forceinline__ void gemv_hidden(const SingleArgs& s, Pipeline& p, int rows, RowScales<F, HIDDEN> scales,
                                            const Normed<F>& x, Done done) {
#pragma unroll 1
  for (int j = 0; j < rows; ++j) {
    const float scale = scales.of(j);  // loads while the row is multiplied
    const float sum = x.multiply_row(s, p);
    done(j, F::ROW_SCALE ? scale * sum : sum);
  }
}

// Receives K bf16 values from other blocks into shared memory.
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

// The warp's part of the rows of a quantised projection, in blocks.
template <class F, int K>
__device__ __forceinline__ Range part_blocks() {
  using P = Parts<F, K>;
  const int part = (threadIdx.x >> 5) % P::COUNT, first = range_start(P::ROW_BLOCKS, part, P::COUNT);
  return {first, range_start(P::ROW_BLOCKS, part + 1, P::COUNT) - first};
}

// x += W @ input for the block's rows of W [HIDDEN, K], `matrix`, published in `epoch`. The input is from the previous
// epoch. `mine`: see warp_parts. The parts of a row are summed in shared memory.
template <class F, int K>
__device__ __forceinline__ void project(const SingleArgs& s, Pipeline& p, const u8* matrix, const u32* from, Range mine,
                                        u32 epoch, typename F::template Input<K>& input, Shared& sh) {
  using P = Parts<F, K>;
  const int lane = threadIdx.x & 31, base = range_start(HIDDEN, blockIdx.x, BLOCKS);
  const int owned = range_start(HIDDEN, blockIdx.x + 1, BLOCKS) - base, r = threadIdx.x;
  const float scale = RowScales<F, K>(matrix, base).of(min(r, owned - 1));
  projection_input<F, K>(s, from, epoch - 1, input);
  if constexpr (is_quantised<F>()) {
    const Range blocks = part_blocks<F, K>();
    HeldInput<P::HELD> x;
    hold<F>(x, input, blocks.first, blocks.count, F::UNIT);
#pragma unroll 1
    for (int i = mine.first; i < mine.first + mine.count; ++i) {
      const float sum = multiply<F>(s, p, x, blocks.count);
      if (lane == 0) sh.project.sums[i * P::COUNT + (threadIdx.x >> 5) % P::COUNT] = sum;
    }
  } else {
#pragma unroll 1
    for (int i = mine.first; i < mine.first + mine.count; ++i) {
      wait(p);
      const uint4* tile = (const uint4*)tile_at(p.released);
      float sum = F::template dot<P::WEIGHTS>(tile, input, i % P::COUNT * (P::WEIGHTS / VEC));
      release(s, p);
      sum = warp_sum(sum);
      if (lane == 0) sh.project.sums[i] = sum;
    }
  }
  arrive(s);  // the count may run ahead of the values: consumers check each value's epoch
  if (r < owned) {
    float sum = F::ROW_SCALE ? 0.f : sh.residual[r];
    for (int k = 0; k < P::COUNT; ++k) sum += sh.project.sums[r * P::COUNT + k];
    if (F::ROW_SCALE) sum = fmaf(scale, sum, sh.residual[r]);
    sh.residual[r] = sum;
    publish(s.x + base + r, ll_word(sum, epoch));
  }
}
