// Matrix products of a batch with bf16 or int8 weights on Hopper's tensor cores (wgmma). Part of batch.cu.
//
// out[p][b][f] = sum over part p of k of x[b][k] * W[f][k], for up to 128 rows b. A block has a warpgroup for every 64
// rows. It takes work items of FEATURES features f and one of `parts` parts of the inputs k. Features are the M = 64
// rows of wgmma, and batch rows its N columns: 8 if there are no more, else 32 at a time. A sum's order depends on
// neither, nor on how features are divided among blocks, so a row's bits are the same in every batch. Inputs and weights
// go through a pipeline of DEPTH stages in shared memory, 64 values of k at a time, in rows of 128 bytes with the
// 128-byte swizzle. int8 weights arrive in rows of 64 bytes. They are widened to bf16 while wgmma works on the step
// before.

#include "copy_async.cuh"

constexpr int PRODUCT_ROWS = 8 * ROW_TILES, COLUMNS = ROW_TILES == 1 ? 8 : 32;  // N of an instruction
constexpr int COLUMN_TILES = (PRODUCT_ROWS < 64 ? PRODUCT_ROWS : 64) / COLUMNS;  // of a warpgroup
constexpr bool WIDENED = Format::BITS == 8;
constexpr int STORED = 64 * Format::BITS / 8;  // bytes of 64 weights
static_assert(WIDENED ? Format::ROW_SCALE : Format::BITS == 16, "a row's weights are contiguous, its scale follows");
static_assert(PRODUCT_ROWS % COLUMNS == 0, "rows are whole instructions");

struct ProductArgs { const u8* weights; const u16* x; u16* out; int features, width, parts; };
static_assert(sizeof(ProductArgs) == SIZEOF_ProductArgs, "batch_product.py fills another structure");

// Low word of the shared-memory descriptor of a tile whose first row begins at `at`: its address in units of 16 bytes,
// to which an offset can be added. The high word is the same for all tiles.
__device__ __forceinline__ u32 descriptor_of(const u8* at) {
  const u32 unused = 1;
  return unused << 16 | ((u32)__cvta_generic_to_shared(at) & 0x3ffff) >> 4;
}
constexpr u32 SWIZZLE_128 = 1, STRIDE_OF_EIGHT = 8 * 128 / 16;  // the latter from eight rows to the next eight
constexpr u32 DESCRIPTOR = SWIZZLE_128 << 30 | STRIDE_OF_EIGHT;

// sum += a * b^T for tiles a [64, 16] and b [COLUMNS, 16], asynchronously. A group's warp w holds rows 16 * w to
// 16 * w + 15 in the lane layout of mma.m16n8k16. Rows of either past its matrix are whatever follows in shared memory;
// their sums are never read.
__device__ __forceinline__ void wgmma(float (&sum)[COLUMNS / 2], u32 a, u32 b) {
#if ROW_TILES == 1
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0; mov.b64 a, {%4, %6}; mov.b64 b, {%5, %6};"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, a, b, p, 1, 1, 0, 0;}"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a), "r"(b), "r"(DESCRIPTOR));
#else
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0; mov.b64 a, {%16, %18}; mov.b64 b, {%17, %18};"
               "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, a, b, p, 1, 1, 0, 0;}"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
                 "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
                 "+f"(sum[14]), "+f"(sum[15])
               : "r"(a), "r"(b), "r"(DESCRIPTOR));
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

// Copies CHUNKS * 16 bytes of each of ROWS rows, a thread 16 of every PASS-th row. `from` is where it begins, and `pass`
// the bytes to its next row.
template <int ROWS, int CHUNKS, Reuse REUSE>
__device__ __forceinline__ void copy_tile(u8* to, const u8* from, long long pass) {
  constexpr int PASS = PRODUCT_THREADS / CHUNKS;
  const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  to += (row * CHUNKS + (CHUNKS == 8 ? chunk ^ row % 8 : chunk)) * 16;
#pragma unroll
  for (int r = 0; r < ROWS; r += PASS, from += pass)
    if (r + PASS <= ROWS || r + row < ROWS) copy_async<16, REUSE>(to + r * CHUNKS * 16, from);
}

// Widens the weights that this thread has copied by copy_tile, so it need not wait for others. Loads come first: the
// compiler cannot know that the tile and the stage do not overlap.
template <class F, int FEATURES>
__device__ __forceinline__ void widen(u8* tile, const u8* stage) {
  constexpr int CHUNKS = STORED / 16, PASS = PRODUCT_THREADS / CHUNKS;
  static_assert(FEATURES % PASS == 0, "16 weights in every pass");
  const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  uint4 codes[FEATURES / PASS];
#pragma unroll
  for (int i = 0; i < FEATURES / PASS; ++i) codes[i] = ((const uint4*)stage)[threadIdx.x + i * PRODUCT_THREADS];
  tile += row * 128;
#pragma unroll
  for (int i = 0; i < FEATURES / PASS; ++i, tile += PASS * 128) {
    const uint4 c = codes[i];
    *(uint4*)(tile + (2 * chunk ^ row % 8) * 16) =
        make_uint4(F::codes(c.x, 0), F::codes(c.x, 1), F::codes(c.y, 0), F::codes(c.y, 1));
    *(uint4*)(tile + ((2 * chunk + 1) ^ row % 8) * 16) =
        make_uint4(F::codes(c.z, 0), F::codes(c.z, 1), F::codes(c.w, 0), F::codes(c.w, 1));
  }
}

template <int TILES> using Sums = float[TILES][COLUMN_TILES][COLUMNS / 2];

// Rows' scales of the lane's features, g and g + 8 of its warp's 16 in each tile of 64.
template <int FEATURES, int TILES>
__device__ __forceinline__ void load_scales(float (&scales)[TILES][2], const ProductArgs& s, int first) {
#pragma unroll
  for (int m = 0; m < TILES; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int feature = m * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
      scales[m][h] = load_nc4(s.weights + min(first + feature, s.features - 1) * (long long)Format::row(s.width) +
                              Format::bytes(s.width));
    }
}

template <int FEATURES, int TILES>
__device__ __forceinline__ void write_sums(const Sums<TILES>& sums, const float (&scales)[TILES][2], u16* out,
                                           int features) {
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
        float4 sum = *(const float4*)(sums[m][n] + 4 * i);
        if constexpr (WIDENED)
          sum = make_float4(sum.x * scales[m][0], sum.y * scales[m][0], sum.z * scales[m][1], sum.w * scales[m][1]);
        u16* to = out + (long long)(n * COLUMNS + 8 * i) * features + m * 64;
        *(u32*)to = transpose(pack(sum.x, sum.y));
        *(u32*)(to + 8) = transpose(pack(sum.z, sum.w));
      }
    }
  }
}

template <int FEATURES, int DEPTH>
__device__ __forceinline__ void product(const ProductArgs& s) {
  constexpr int TILES = (FEATURES + 63) / 64, CHUNKS = STORED / 16;
  constexpr int INPUTS = PRODUCT_ROWS * 128, WEIGHTS = FEATURES * STORED, WIDE = FEATURES * 128;  // bytes
  extern __shared__ __align__(1024) u8 inputs[];  // of DEPTH stages, then two widened tiles if any, then the weights
  u8 *const wide = inputs + DEPTH * INPUTS, *const stages = wide + (WIDENED ? 2 * WIDE : 0);
  const int steps = s.width / 64, groups = (s.features + FEATURES - 1) / FEATURES, items = groups * s.parts;
  const long long row_bytes = Format::row(s.width), input_bytes = s.width * 2LL;
  // Where this thread begins to copy: in the inputs, and in the first row of weights.
  const u8* x = (const u8*)s.x + threadIdx.x / 8 * input_bytes + threadIdx.x % 8 * 16;
  const u8* matrix = s.weights + threadIdx.x / CHUNKS * row_bytes + threadIdx.x % CHUNKS * 16;
  // The last two groups may overlap. Both write the same sums there.
  struct At { int item, part, first, step, end; const u8* weights; };
  const auto start_of = [&](int item) {  // divides, so not at every step
    const int part = item / groups, first = min(item % groups * FEATURES, s.features - FEATURES);
    return At{item, part, first, steps * part / s.parts, steps * (part + 1) / s.parts, matrix + first * row_bytes};
  };
  const auto advance = [&](At& at) {
    if (++at.step == at.end) at = start_of(at.item + gridDim.x);
  };
  const auto issue_weights = [&](int stage, const At& at) {
    copy_tile<FEATURES, CHUNKS, NEVER>(stages + stage * WEIGHTS, at.weights + at.step * STORED,
                                       PRODUCT_THREADS / CHUNKS * row_bytes);
  };
  const auto issue_inputs = [&](int stage, const At& at) {
    copy_tile<PRODUCT_ROWS, 8, BY_OTHERS>(inputs + stage * INPUTS, x + at.step * 128,
                                          PRODUCT_THREADS / 8 * input_bytes);
  };

  At next = start_of(blockIdx.x), ahead = next;  // weights do not depend on the previous kernels
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1 && ahead.item < items; ++i, advance(ahead)) issue_weights(i, ahead);
  launch_dependent_grids();
  wait_on_dependent_grids();
#pragma unroll 1
  for (int i = 0; i < DEPTH - 1; ++i) {
    if (next.item < items) {
      issue_inputs(i, next);
      advance(next);
    }
    end_of_copies();
  }

  int used = 0;
#pragma unroll 1
  for (At now = start_of(blockIdx.x); now.item < items; now = start_of(now.item + gridDim.x)) {
    Sums<TILES> sums = {};
    float scales[TILES][2];
    if constexpr (WIDENED) load_scales<FEATURES, TILES>(scales, s, now.first);
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
      const int stage = used % DEPTH;
      u8* tile = stages + stage * WEIGHTS;
      wait_for_copies<DEPTH - 2>();
      if constexpr (WIDENED) {
        tile = wide + used % 2 * WIDE;  // wgmma may still read the other
        widen<Format, FEATURES>(tile, stages + stage * WEIGHTS);
      }
      fence_proxy_async();
      wgmma_wait();
      fence_sums();
      __syncthreads();  // all threads' copies have arrived, and no warp still reads the stage that is filled next
      const u32 a = descriptor_of(tile), b = descriptor_of(inputs + stage * INPUTS + threadIdx.x / 128 * (64 * 128));
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
        issue_weights((used + DEPTH - 1) % DEPTH, next);
        issue_inputs((used + DEPTH - 1) % DEPTH, next);
        advance(next);
      }
      end_of_copies();
    }
    wgmma_wait();
    fence_sums();
    write_sums<FEATURES, TILES>(sums, scales, s.out + (long long)now.part * PADDED_ROWS * s.features + now.first,
                                s.features);
  }
}

// One kernel, product_<features>, for each number of features that products need.
#define PRODUCT(FEATURES, DEPTH)                                                                              \
  extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) product_##FEATURES(const ProductArgs s) { \
    product<FEATURES, DEPTH>(s);                                                                              \
  }
PRODUCTS
