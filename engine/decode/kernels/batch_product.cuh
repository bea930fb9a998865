// Products of a batch with 8-bit or 4-bit matrices, widened to bf16 in registers for tensor cores. Part of batch.cu.
//
// out[b][f] = sum over k of x[b][k] * W[f][k], for up to 8 * ROW_TILES rows b. A block takes units: the features f of
// up to TILES tiles of 16, and one of `parts` equal parts of the inputs k. Its warps split the inputs again, each in
// steps of 64. Their sums are added in shared memory, in order. So the order of additions depends only on the matrix,
// and a row's result does not depend on the number of rows. A block reads a unit's inputs once, from L2, so it helps if
// more tiles share them. Features are the rows of mma.m16n8k16's product, and batch rows are its columns.

#include "copy_async.cuh"

constexpr int PRODUCT_WARPS = PRODUCT_THREADS / 32, PRODUCT_ROWS = 8 * ROW_TILES;
constexpr int PITCH = 16 + 4;  // of sums: no two lanes of a warp write to the same bank

struct ProductArgs { const u8* weights; const u16* x; u16* out; int features, width, parts; };
static_assert(sizeof(ProductArgs) == SIZEOF_ProductArgs, "batch_product.py fills another structure");

// Weights of a warp's step: 64 per matrix row and, if groups have scales, one word per row with the step's scales.
template <int TILES>
struct Stages {
  static constexpr int ROW = 64 * Format::BITS / 8;  // bytes of a row's 64 weights
  static constexpr int WEIGHTS = 16 * TILES * ROW, BYTES = WEIGHTS + (Format::ROW_SCALE ? 0 : 16 * TILES * 4);
};
struct ProductSums { float of[PRODUCT_WARPS][PRODUCT_ROWS][PITCH], scales[MAX_TILES * 16]; };

template <int TILES>
__device__ __forceinline__ void copy_step(u8* stage, const u8* matrix, int features, int first, int width, int step) {
  constexpr int QUARTER = Stages<TILES>::ROW / 4;
  const int lane = threadIdx.x & 31, row = lane / 4;
  const u8* block = matrix + step / 8 * Format::bytes(Format::BLOCK);
  const u32 row_bytes = Format::row(width);
  const u8* from = block + (first + row) * (long long)row_bytes + (step % 8 * 4 + lane % 4) * QUARTER;
  u8* to = stage + row * Stages<TILES>::ROW + Format::swizzled(lane % 4, row) * QUARTER;
#pragma unroll
  for (int r = 0; r < 2 * TILES; ++r) {
    copy_async<QUARTER>(to + r * 8 * Stages<TILES>::ROW, from);
    if (first + (r + 1) * 8 < features) from += 8 * row_bytes;  // the last unit may have fewer tiles
  }
  if constexpr (!Format::ROW_SCALE) {
#pragma unroll
    for (int r = lane; r < 16 * TILES; r += 32)
      copy_async<4>(stage + Stages<TILES>::WEIGHTS + r * 4,
                    block + min(first + r, features - 1) * (long long)row_bytes + Format::scales(step % 8));
  }
}

// acc += products of 32 weights of 16 features with b's h-th inputs, times the scales of the lane's two features.
template <int HALVES>
__device__ __forceinline__ void add_group(float (&acc)[ROW_TILES][4], const uint2 (&w)[2],
                                          const uint4 (&b)[ROW_TILES][HALVES], int h, float first, float second) {
  constexpr int AT_ONCE = ROW_TILES < 4 ? ROW_TILES : 4;  // more would not fit into registers
  u32 a[2][4];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) a[i][k] = Format::codes(i ? w[k & 1].y : w[k & 1].x, k >> 1);
#pragma unroll
  for (int from = 0; from < ROW_TILES; from += AT_ONCE) {
    float sum[AT_ONCE][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < AT_ONCE && from + n < ROW_TILES; ++n) {
        const uint4 x = b[from + n][h];
        multiply(sum[n], a[i][0], a[i][1], a[i][2], a[i][3], i ? x.z : x.x, i ? x.w : x.y);
      }
#pragma unroll
    for (int n = 0; n < AT_ONCE && from + n < ROW_TILES; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[from + n][c] = fmaf(c < 2 ? first : second, sum[n][c], acc[from + n][c]);
  }
}

// acc += product of a step's weights with x, the inputs of the lane's row b = g, from 8 * t on and from 32 + 8 * t on,
// where t = lane % 4. So a warp reads whole sectors of 32 bytes.
template <int TILES, int DEPTH>
__device__ __forceinline__ void add_step(float (&acc)[TILES][ROW_TILES][4], const u8* stage, int step, const u16* x,
                                         int width) {
  constexpr int HALVES = ROW_TILES > 4 ? 1 : 2;  // halves of the inputs in registers at a time
  const int lane = threadIdx.x & 31;
  const u32* scales = (const u32*)(stage + Stages<TILES>::WEIGHTS);
#pragma unroll
  for (int from = 0; from < 2; from += HALVES) {
    uint4 b[ROW_TILES][HALVES];
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (int h = 0; h < HALVES; ++h) b[n][h] = load_cg16(x + n * 8LL * width + (from + h) * 32);
    if (from == 0) {
      wait_for_copies<DEPTH - 1>();
      __syncwarp();
    }
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      u32 scale[2];
      if constexpr (!Format::ROW_SCALE)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          scale[r] = __byte_perm(scales[m * 16 + r * 8 + lane / 4], 0, Format::which(step));
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        uint2 w[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          w[r] = Format::eight(stage + (m * 16 + r * 8 + lane / 4) * Stages<TILES>::ROW, lane / 4, from + h, lane % 4);
        if constexpr (Format::GROUP == 32) {
          const int shift = 16 * (from + h);
          add_group<HALVES>(acc[m], w, b, h, fp16(scale[0] >> shift), fp16(scale[1] >> shift));
          continue;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          u32 a[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            a[k] = Format::codes(i ? w[k & 1].y : w[k & 1].x, k >> 1);
            if constexpr (!Format::ROW_SCALE) a[k] = multiply_bf16x2(a[k], scale[k & 1]);
          }
#pragma unroll
          for (int n = 0; n < ROW_TILES; ++n)
            multiply(acc[m][n], a[0], a[1], a[2], a[3], i ? b[n][h].z : b[n][h].x, i ? b[n][h].w : b[n][h].y);
        }
      }
    }
  }
}

template <int TILES, int DEPTH>
__device__ __forceinline__ void product(const ProductArgs& s) {
  extern __shared__ __align__(128) u8 dynamic[];
  static_assert(PRODUCT_WARPS * DEPTH * Stages<TILES>::BYTES + sizeof(ProductSums) <= PRODUCT_SHARED,
                "batch_product.py reckons otherwise");
  ProductSums& sums = *(ProductSums*)dynamic;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  u8* const stages = dynamic + sizeof(ProductSums) + warp * DEPTH * Stages<TILES>::BYTES;
  const int steps = s.width / 64 / s.parts, first = steps * warp / PRODUCT_WARPS;
  const int count = steps * (warp + 1) / PRODUCT_WARPS - first;
  const int groups = (s.features + 16 * TILES - 1) / (16 * TILES), units = groups * s.parts;
  struct { int unit, step; } next = {(int)blockIdx.x, 0};
  int issued = 0, used = 0;

  const auto issue = [&] {
    if (count && next.unit < units) {
      copy_step<TILES>(stages + issued % DEPTH * Stages<TILES>::BYTES, s.weights, s.features,
                       next.unit % groups * (16 * TILES), s.width, next.unit / groups * steps + first + next.step);
      if (++next.step == count) { next.unit += gridDim.x; next.step = 0; }
    }
    end_of_copies();
    ++issued;
  };
#pragma unroll 1
  for (int i = 0; i < DEPTH; ++i) issue();
  launch_dependent_grids();
  wait_on_dependent_grids();

#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int feature = unit % groups * (16 * TILES), part = unit / groups;
    float row_scale = 1.f;  // of the thread's feature
    if (Format::ROW_SCALE && threadIdx.x < 16 * TILES)
      row_scale = load_nc4(s.weights + min(feature + (int)threadIdx.x, s.features - 1) * Format::row(s.width) +
                           Format::bytes(s.width));
    float acc[TILES][ROW_TILES][4] = {};
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int at = part * steps + first + i;
      add_step<TILES, DEPTH>(acc, stages + used++ % DEPTH * Stages<TILES>::BYTES, at,
                             s.x + (long long)g * s.width + at * 64 + t * 8, s.width);
      __syncwarp();  // all lanes have read the stage
      issue();
    }
    if (threadIdx.x < 16 * TILES) sums.scales[threadIdx.x] = row_scale;
    u16* out = s.out + (long long)part * PADDED_ROWS * s.features + feature;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums.of[warp][n * 8 + t * 2 + (c & 1)][g + (c >> 1) * 8] = acc[m][n][c];
      __syncthreads();
      for (int i = threadIdx.x; i < PRODUCT_ROWS * 8 && feature + m * 16 < s.features; i += PRODUCT_THREADS) {
        const int row = i / 8, f = i % 8 * 2;
        float2 sum = make_float2(0.f, 0.f);
#pragma unroll
        for (int w = 0; w < PRODUCT_WARPS; ++w) {
          const float2 one = *(const float2*)&sums.of[w][row][f];
          sum = make_float2(sum.x + one.x, sum.y + one.y);
        }
        const float2 scale = *(const float2*)&sums.scales[m * 16 + f];
        *(u32*)(out + (long long)row * s.features + m * 16 + f) = pack(sum.x * scale.x, sum.y * scale.y);
      }
      __syncthreads();
    }
  }
}

// One kernel, product_<tiles>, for each number of tiles that products need.
#define PRODUCT(TILES, DEPTH)                                                                             \
  extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) product_##TILES(const ProductArgs s) { \
    product<TILES, DEPTH>(s);                                                                             \
  }
PRODUCTS
