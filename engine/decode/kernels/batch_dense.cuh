// Products of a batch with bf16 matrices by Hopper's warpgroup instructions. Part of batch.cu.
//
// out[p][b][f] = sum over part p of k of x[b][k] * W[f][k], for up to 64 rows b. A block of one warpgroup takes units:
// FEATURES features f, and one of `parts` parts of the inputs k. Rows are the 64 rows of wgmma's product whatever their
// number, and features its columns. So a row's result depends neither on the number of rows nor on how features are
// shared out. Steps of 64 inputs and weights pass through DEPTH stages in shared memory, in rows of 128 bytes whose
// chunks of 16 are permuted as wgmma's 128-byte swizzle has it.

#include "copy_async.cuh"

constexpr int PRODUCT_ROWS = 8 * ROW_TILES, WARPGROUP = 128, COLUMNS = 32;  // columns of an instruction

struct ProductArgs { const u16 *weights, *x; u16* out; int features, width, parts; };
static_assert(sizeof(ProductArgs) == SIZEOF_ProductArgs, "batch_product.py fills another structure");

// Descriptor of a tile of rows with 16 of their 64 inputs, the first row's from `at` on. Its lowest bits are the place
// in units of 16 bytes, so that offsets can be added. Eight rows take 1024 bytes.
__device__ __forceinline__ u64 tile_at(const u8* at) {
  const u64 swizzle = 1, eight_rows = 1024 / 16, unused = 1;
  return swizzle << 62 | eight_rows << 32 | unused << 16 | (__cvta_generic_to_shared(at) & 0x3ffff) >> 4;
}
// sum += a's 64 rows times b's 32, later. Warp w has rows 16 * w to 16 * w + 15, in the lane layout of mma.m16n8k16. A's
// rows beyond the tile's are read from what follows it, and nobody reads their sums.
__device__ __forceinline__ void multiply_later(float (&sum)[16], u64 a, u64 b) {
  asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0;"
               "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;}"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
                 "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
                 "+f"(sum[14]), "+f"(sum[15])
               : "l"(a), "l"(b));
}
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Lets wgmma see this thread's copies.
__device__ __forceinline__ void publish_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Keeps the compiler from moving a sum while products are under way.
__device__ __forceinline__ void hold(float& sum) {
  asm volatile("" : "+f"(sum)::"memory");
}

// Copies 64 columns of a matrix's rows, with all threads of the block.
template <int ROWS>
__device__ __forceinline__ void copy_tile(u8* to, const u16* from, long long width) {
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  to += row * 128 + (chunk ^ row % 8) * 16;
  from += row * width + chunk * 8;
#pragma unroll
  for (int r = 0; r < ROWS; r += WARPGROUP / 8)
    if (ROWS % (WARPGROUP / 8) == 0 || r + row < ROWS) copy_async<16, false>(to + r * 128, from + r * width);
}

template <int FEATURES>
__device__ __forceinline__ void write_sums(const float (&sums)[FEATURES / COLUMNS][16], u16* out, int features) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  out += (long long)row * features + threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= PRODUCT_ROWS) break;
#pragma unroll
    for (int i = 0; i < FEATURES / 8; ++i) {
      const float* pair = sums[i / 4] + i % 4 * 4 + 2 * r;
      *(u32*)(out + (long long)r * 8 * features + i * 8) = pack(pair[0], pair[1]);
    }
  }
}

template <int FEATURES, int DEPTH>
__device__ __forceinline__ void product(const ProductArgs& s) {
  constexpr int INPUTS = PRODUCT_ROWS * 128, STAGE = INPUTS + FEATURES * 128;  // bytes
  extern __shared__ __align__(1024) u8 stages[];
  const int steps = s.width / 64, groups = (s.features + FEATURES - 1) / FEATURES, units = groups * s.parts;
  // The last groups may share features: they write the same sums.
  const auto first_of = [&](int unit) { return min(unit % groups * FEATURES, s.features - FEATURES); };
  const auto begin_of = [&](int unit) { return steps * (unit / groups) / s.parts; };
  const auto end_of = [&](int unit) { return steps * (unit / groups + 1) / s.parts; };
  struct Next { int unit, step; } next = {(int)blockIdx.x, begin_of(blockIdx.x)};
  const auto advance = [&](Next& at) {
    if (++at.step < end_of(at.unit)) return;
    at.unit += gridDim.x;
    at.step = begin_of(at.unit);
  };
  const auto copy_weights = [&](u8* stage, const Next& at) {
    copy_tile<FEATURES>(stage + INPUTS, s.weights + (long long)first_of(at.unit) * s.width + at.step * 64, s.width);
  };
  const auto copy_inputs = [&](u8* stage, const Next& at) {
    copy_tile<PRODUCT_ROWS>(stage, s.x + at.step * 64, s.width);
  };

  Next ahead = next;  // weights do not wait for the kernels before
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1 && ahead.unit < units; ++i, advance(ahead)) copy_weights(stages + i * STAGE, ahead);
  launch_dependent_grids();
  wait_on_dependent_grids();
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1; ++i) {
    if (next.unit < units) {
      copy_inputs(stages + i * STAGE, next);
      advance(next);
    }
    end_of_copies();
  }

  int used = 0;
#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    float sums[FEATURES / COLUMNS][16] = {};
    const auto hold_sums = [&] {
#pragma unroll
      for (int i = 0; i < FEATURES / 2; ++i) hold(sums[i / 16][i % 16]);
    };
#pragma unroll 1
    for (int step = begin_of(unit); step < end_of(unit); ++step, ++used) {
      wait_for_copies<DEPTH - 2>();
      publish_copies();
      wait_for_products();
      hold_sums();
      __syncthreads();  // all threads' copies are there, and all warps are done with the stage that is filled next
      const u64 a = tile_at(stages + used % DEPTH * STAGE), b = tile_at(stages + used % DEPTH * STAGE + INPUTS);
      begin_products();
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int i = 0; i < FEATURES / COLUMNS; ++i)
          multiply_later(sums[i], a + k * 2, b + i * (COLUMNS * 128 / 16) + k * 2);
      end_products();
      if (next.unit < units) {
        u8* to = stages + (used + DEPTH - 1) % DEPTH * STAGE;
        copy_weights(to, next);
        copy_inputs(to, next);
        advance(next);
      }
      end_of_copies();
    }
    wait_for_products();
    hold_sums();
    write_sums<FEATURES>(sums, s.out + (long long)(unit / groups) * PADDED_ROWS * s.features + first_of(unit),
                         s.features);
  }
}

// One kernel, product_<features>, for each number of features that products need.
#define PRODUCT(FEATURES, DEPTH)                                                                        \
  extern "C" __global__ void __launch_bounds__(WARPGROUP, 1) product_##FEATURES(const ProductArgs s) { \
    product<FEATURES, DEPTH>(s);                                                                        \
  }
PRODUCTS
