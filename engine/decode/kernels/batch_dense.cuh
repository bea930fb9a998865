// Matrix products of a batch with bf16 weights on Hopper's tensor cores (wgmma). Part of batch.cu.
//
// out[p][b][f] = sum over part p of k of x[b][k] * W[f][k], for up to 128 rows b. A block has a warpgroup for every 64
// rows. It takes work items of FEATURES features f and one of `parts` parts of the inputs k. Features are the M = 64
// rows of wgmma, and batch rows its N columns: 8 if there are no more, else 32 at a time. A sum's order depends on
// neither, nor on how features are divided among blocks, so a row's bits are the same in every batch. Inputs and weights
// go through a pipeline of DEPTH stages in shared memory, 64 values of k at a time, in rows of 128 bytes with the
// 128-byte swizzle.

#include "copy_async.cuh"

constexpr int PRODUCT_ROWS = 8 * ROW_TILES, COLUMNS = ROW_TILES == 1 ? 8 : 32;  // N of an instruction
constexpr int PRODUCT_THREADS = 128 * ((PRODUCT_ROWS + 63) / 64);
constexpr int COLUMN_TILES = (PRODUCT_ROWS < 64 ? PRODUCT_ROWS : 64) / COLUMNS;  // of a warpgroup
static_assert(PRODUCT_ROWS % COLUMNS == 0, "rows are whole instructions");

struct ProductArgs { const u16 *weights, *x; u16* out; int features, width, parts; };
static_assert(sizeof(ProductArgs) == SIZEOF_ProductArgs, "batch_product.py fills another structure");

// Shared-memory descriptor of a tile whose first row begins at `at`. Its low bits are the address in units of 16 bytes,
// so an offset can be added to it.
__device__ __forceinline__ u64 descriptor_of(const u8* at) {
  const u64 swizzle_128 = 1, stride = 8 * 128 / 16, unused = 1;  // stride: from eight rows to the next eight
  return swizzle_128 << 62 | stride << 32 | unused << 16 | (__cvta_generic_to_shared(at) & 0x3ffff) >> 4;
}
// sum += a * b^T for tiles a [64, 16] and b [COLUMNS, 16], asynchronously. A group's warp w holds rows 16 * w to
// 16 * w + 15 in the lane layout of mma.m16n8k16. Rows of either past its matrix are whatever follows in shared memory;
// their sums are never read.
__device__ __forceinline__ void wgmma(float (&sum)[COLUMNS / 2], u64 a, u64 b) {
#if ROW_TILES == 1
  asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0;"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;}"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "l"(a), "l"(b));
#else
  asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0;"
               "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;}"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
                 "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
                 "+f"(sum[14]), "+f"(sum[15])
               : "l"(a), "l"(b));
#endif
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Makes this thread's copies visible to wgmma.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Keeps the compiler from moving an accumulator while wgmma is in flight.
__device__ __forceinline__ void fence_operand(float& sum) {
  asm volatile("" : "+f"(sum)::"memory");
}

// Copies 64 columns of a matrix's rows. All threads of the block take part.
template <int ROWS, Reuse REUSE>
__device__ __forceinline__ void copy_tile(u8* to, const u16* from, long long width) {
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  to += row * 128 + (chunk ^ row % 8) * 16;
  from += row * width + chunk * 8;
#pragma unroll
  for (int r = 0; r < ROWS; r += PRODUCT_THREADS / 8)
    if (ROWS % (PRODUCT_THREADS / 8) == 0 || r + row < ROWS) copy_async<16, REUSE>(to + r * 128, from + r * width);
}

template <int TILES> using Sums = float[TILES][COLUMN_TILES][COLUMNS / 2];

template <int FEATURES, int TILES>
__device__ __forceinline__ void write_sums(const Sums<TILES>& sums, u16* out, int features) {
  const int warp = threadIdx.x / 32 % 4 * 16, first = threadIdx.x / 128 * 64, row = first + threadIdx.x % 32 / 4;
  out += (long long)row * features + warp + threadIdx.x % 4 * 2;
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    if (m * 64 + warp >= FEATURES) break;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; ++n) {
      if (first + n * COLUMNS >= PRODUCT_ROWS) break;
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; ++i) {
        const float* sum = sums[m][n] + 4 * i;
        u16* to = out + (long long)(n * COLUMNS + 8 * i) * features + m * 64;
        *(u32*)to = transpose(pack(sum[0], sum[1]));
        *(u32*)(to + 8) = transpose(pack(sum[2], sum[3]));
      }
    }
  }
}

template <int FEATURES, int DEPTH>
__device__ __forceinline__ void product(const ProductArgs& s) {
  constexpr int INPUTS = PRODUCT_ROWS * 128, STAGE = INPUTS + FEATURES * 128;  // bytes
  constexpr int TILES = (FEATURES + 63) / 64;
  extern __shared__ __align__(1024) u8 stages[];
  const int steps = s.width / 64, groups = (s.features + FEATURES - 1) / FEATURES, items = groups * s.parts;
  // The last two groups may overlap. Both write the same sums there.
  struct At { int item, part, first, step, end; };
  const auto start_of = [&](int item) {  // divides, so not at every step
    const int part = item / groups, first = min(item % groups * FEATURES, s.features - FEATURES);
    return At{item, part, first, steps * part / s.parts, steps * (part + 1) / s.parts};
  };
  const auto advance = [&](At& at) {
    if (++at.step == at.end) at = start_of(at.item + gridDim.x);
  };
  const auto copy_weights = [&](u8* stage, const At& at) {
    copy_tile<FEATURES, NEVER>(stage + INPUTS, s.weights + (long long)at.first * s.width + at.step * 64, s.width);
  };
  const auto copy_inputs = [&](u8* stage, const At& at) {
    copy_tile<PRODUCT_ROWS, BY_OTHERS>(stage, s.x + at.step * 64, s.width);
  };

  At next = start_of(blockIdx.x), ahead = next;  // weights do not depend on the previous kernels
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1 && ahead.item < items; ++i, advance(ahead)) copy_weights(stages + i * STAGE, ahead);
  launch_dependent_grids();
  wait_on_dependent_grids();
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1; ++i) {
    if (next.item < items) {
      copy_inputs(stages + i * STAGE, next);
      advance(next);
    }
    end_of_copies();
  }

  int used = 0;
#pragma unroll 1
  for (At now = start_of(blockIdx.x); now.item < items; now = start_of(now.item + gridDim.x)) {
    Sums<TILES> sums = {};
    const auto fence_sums = [&] {
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
          for (int i = 0; i < COLUMNS / 2; ++i) fence_operand(sums[m][n][i]);
    };
#pragma unroll 1
    for (; now.step < now.end; ++now.step, ++used) {
      wait_for_copies<DEPTH - 2>();
      fence_proxy_async();
      wgmma_wait();
      fence_sums();
      __syncthreads();  // all threads' copies have arrived, and no warp still reads the stage that is filled next
      const u8* stage = stages + used % DEPTH * STAGE;
      const u64 a = descriptor_of(stage + INPUTS), b = descriptor_of(stage + threadIdx.x / 128 * (64 * 128));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
          for (int n = 0; n < COLUMN_TILES; ++n)
            wgmma(sums[m][n], a + m * (64 * 128 / 16) + k * 2, b + n * (COLUMNS * 128 / 16) + k * 2);
      wgmma_commit();
      if (next.item < items) {
        u8* to = stages + (used + DEPTH - 1) % DEPTH * STAGE;
        copy_weights(to, next);
        copy_inputs(to, next);
        advance(next);
      }
      end_of_copies();
    }
    wgmma_wait();
    fence_sums();
    write_sums<FEATURES, TILES>(sums, s.out + (long long)now.part * PADDED_ROWS * s.features + now.first, s.features);
  }
}

// One kernel, product_<features>, for each number of features that products need.
#define PRODUCT(FEATURES, DEPTH)                                                                              \
  extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) product_##FEATURES(const ProductArgs s) { \
    product<FEATURES, DEPTH>(s);                                                                              \
  }
PRODUCTS
