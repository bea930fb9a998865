// Products of a batch with matrices in 8 or 4 bits, widened to bf16 in registers for tensor cores. Part of batch.cu.
//
// out[b][f] = sum over k of x[b][k] * W[f][k], for up to 8 * ROW_TILES rows b. A block takes units: 16 * TILES features
// f, and one of `parts` equal parts of the inputs k. Its warps split the inputs once more, each in steps of 64 weights
// of a matrix row, 32 of either half of a format's block; their sums are added up in shared memory, in order. So the
// order of additions depends on the matrix alone, and a row's result not on how many there are. Tensor cores multiply
// codes, which are exact in bf16; the fp32 scale comes after. Features are the rows of mma.m16n8k16's product, and the
// batch's rows its columns, eight at a time.

constexpr int PRODUCT_WARPS = PRODUCT_THREADS / 32;
constexpr int FEATURES = 16 * TILES, PRODUCT_ROWS = 8 * ROW_TILES;
constexpr int PITCH = FEATURES + 4;  // of sums: no two lanes of a warp write to the same bank

struct ProductArgs { const u8* weights; const u16* x; u16* out; int features, width, parts; };
static_assert(sizeof(ProductArgs) == SIZEOF_ProductArgs, "batch_product.py fills another structure");

template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {  // the lane that copies reads it back
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "n"(BYTES) : "memory");
#else
#pragma unroll
  for (int i = 0; i < BYTES / 4; ++i) ((u32*)to)[i] = ((const u32*)from)[i];
#endif
}
__device__ __forceinline__ void end_of_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LATER>
__device__ __forceinline__ void wait_for_copies() {  // but for the LATER last groups
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#endif
}

// A lane's weights of the rows g and g + 8 of each tile at one step, where g = lane / 4, and their scales.
struct Step { Format::Lane weights[2 * TILES][32]; Format::Scales scales[2 * TILES][32]; };
struct ProductShared { Step stages[PRODUCT_WARPS][DEPTH]; float sums[PRODUCT_WARPS][PRODUCT_ROWS][PITCH]; };
static_assert(sizeof(ProductShared) == PRODUCT_SHARED, "batch_product.py reckons otherwise");

// acc += the product of a step's weights with x: the lane's row b = g, at its first input, and `width` from row to row.
__device__ __forceinline__ void add_step(float (&acc)[TILES][ROW_TILES][4], const Step& step, const u16* x, int width) {
  const int lane = threadIdx.x & 31;
  Format::Lane w[2 * TILES];
  float2 scale[2 * TILES];
#pragma unroll
  for (int r = 0; r < 2 * TILES; ++r) {
    w[r] = step.weights[r][lane];
    scale[r] = Format::widen(step.scales[r][lane]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u32 a[TILES][2][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) a[m][i][k] = Format::codes(w[2 * m + (k & 1)], half, 2 * i + (k >> 1));
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n) {
      const uint4 b = *(const uint4*)(x + (long long)n * 8 * width + half * 256);
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        float c[4] = {0.f, 0.f, 0.f, 0.f};
        multiply(c, a[m][0][0], a[m][0][1], a[m][0][2], a[m][0][3], b.x, b.y);
        multiply(c, a[m][1][0], a[m][1][1], a[m][1][2], a[m][1][3], b.z, b.w);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float2 f = scale[2 * m + (k >> 1)];
          acc[m][n][k] = fmaf(half ? f.y : f.x, c[k], acc[m][n][k]);
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, PRODUCT_BLOCKS) product(const ProductArgs s) {
  extern __shared__ __align__(128) u8 dynamic[];
  ProductShared& sh = *(ProductShared*)dynamic;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int steps = s.width / 64 / s.parts, first = steps * warp / PRODUCT_WARPS;
  const int count = steps * (warp + 1) / PRODUCT_WARPS - first;
  const int groups = s.features / FEATURES, units = groups * s.parts;
  struct { int unit, step; } next = {(int)blockIdx.x, 0};
  int issued = 0, used = 0;

  const auto issue = [&] {
    if (count && next.unit < units) {
      const int at = next.unit / groups * steps + first + next.step;
      const u8* row = s.weights + Format::bytes((long long)(next.unit % groups * FEATURES + g) * s.width) +
                      at / 8 * Format::bytes(Format::BLOCK);
      Step& to = sh.stages[warp][issued % DEPTH];
#pragma unroll
      for (int r = 0; r < 2 * TILES; ++r, row += Format::bytes(8LL * s.width)) {
        copy_async<sizeof(Format::Lane)>(&to.weights[r][lane], row + (at % 8 * 4 + t) * sizeof(Format::Lane));
        copy_async<sizeof(Format::Scales)>(&to.scales[r][lane], Format::scales_at(row, at % 8));
      }
      if (++next.step == count) { next.unit += gridDim.x; next.step = 0; }
    }
    end_of_copies();
    ++issued;
  };
#pragma unroll 1
  for (int i = 0; i < DEPTH; ++i) issue();

#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    float acc[TILES][ROW_TILES][4] = {};
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      wait_for_copies<DEPTH - 1>();
      const int at = unit / groups * steps + first + i;
      const u16* x = s.x + (long long)g * s.width + at / 8 * 512 + at % 8 * 32 + t * 8;
      add_step(acc, sh.stages[warp][used++ % DEPTH], x, s.width);
      issue();
    }
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          sh.sums[warp][n * 8 + t * 2 + (c & 1)][m * 16 + g + (c >> 1) * 8] = acc[m][n][c];
    __syncthreads();
    u16* out = s.out + (long long)(unit / groups) * PADDED_ROWS * s.features + unit % groups * FEATURES;
    for (int i = threadIdx.x; i < PRODUCT_ROWS * FEATURES / 2; i += PRODUCT_THREADS) {
      const int row = i / (FEATURES / 2), f = i % (FEATURES / 2) * 2;
      float2 sum = make_float2(0.f, 0.f);
#pragma unroll
      for (int w = 0; w < PRODUCT_WARPS; ++w) {
        const float2 part = *(const float2*)&sh.sums[w][row][f];
        sum = make_float2(sum.x + part.x, sum.y + part.y);
      }
      *(u32*)(out + (long long)row * s.features + f) = pack(sum.x, sum.y);
    }
    __syncthreads();
  }
}
