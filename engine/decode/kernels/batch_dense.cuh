// Matrix products of a batch on Hopper's tensor cores (wgmma), with bf16, int8 or int4 weights. Part of batch.cu.
//
// out[p][b][f] = sum over part p of k of x[b][k] * W[f][k], for up to 128 rows b. A block takes work items of FEATURES
// features f and one of `parts` parts of the inputs k. Features are the M = 64 rows of wgmma, and batch rows its N
// columns: 8, 16, 32 or 64. A sum's order depends on neither, nor on how features are divided among blocks, so a row's bits
// are the same in every batch. A step is 128 bytes of weights per feature. DEPTH steps are in shared memory, in rows of
// 128 bytes with the 128-byte swizzle: inputs in slabs of 64, and weights. One thread has them copied (TMA). wgmma reads
// both there, but int8 and int4 weights are first widened to bf16, in registers. That is work for a warpgroup per 64
// features. bf16 needs only one per block, which leaves room for attention beside it.

#include "bulk_copy.cuh"

#if ROW_TILES == 1
#define BY_COLUMNS(FEW, SOME, MORE, MOST) FEW
#elif ROW_TILES == 2
#define BY_COLUMNS(FEW, SOME, MORE, MOST) SOME
#elif ROW_TILES % 8
#define BY_COLUMNS(FEW, SOME, MORE, MOST) MORE
#else
#define BY_COLUMNS(FEW, SOME, MORE, MOST) MOST
#endif

constexpr int PRODUCT_ROWS = 8 * ROW_TILES, COLUMNS = BY_COLUMNS(8, 16, 32, 64), COLUMN_TILES = PRODUCT_ROWS / COLUMNS;
constexpr int SLABS = 16 / Format::BITS, SLAB = PRODUCT_ROWS * 128;  // of inputs in a step; bytes
constexpr bool WIDENED = SLABS > 1, SCALED = Format::GROUP == 64;    // SCALED: with a scale for every 64 weights
constexpr int STEPS = WIDENED ? Format::BLOCK / (64 * SLABS) : 1;    // of a block of weights
static_assert(Format::GROUP != 32, "weights are scaled, not sums");
static_assert(PRODUCT_ROWS % COLUMNS == 0, "rows are whole instructions");

struct alignas(64) TensorMap { u8 opaque[128]; };  // the driver's CUtensorMap
// The maps' boxes are what a stage holds: of `x`, a step's inputs; of `codes` and `scales`, a step's codes and, for int4,
// the scales of 512 weights. A block's features come as sixteens, of two halves, of eight features each.
struct DenseArgs { TensorMap codes, scales, x; const u8* weights; u16* out; int features, width, parts; };
static_assert(sizeof(DenseArgs) == SIZEOF_DenseArgs, "batch_dense.py fills another structure");

// Low word of the shared-memory descriptor of a tile whose first row begins at `at`: its address in units of 16 bytes,
// to which an offset can be added. The high word is the same for all tiles. The shuffle tells the compiler that a warp's
// lanes have the same `at`.
__device__ __forceinline__ u32 descriptor_of(const u8* at) {
  const u32 unused = 1;
  return __shfl_sync(~0u, unused << 16 | (shared_address(at) & 0x3ffff) >> 4, 0);
}
constexpr u32 SWIZZLE_128 = 1, STRIDE_OF_EIGHT = 8 * 128 / 16;  // the latter from eight rows to the next eight
constexpr u32 DESCRIPTOR = SWIZZLE_128 << 30 | STRIDE_OF_EIGHT;

#define FOUR(S, I) "+f"(S[I]), "+f"(S[I + 1]), "+f"(S[I + 2]), "+f"(S[I + 3])
#define EIGHT(S, I) FOUR(S, I), FOUR(S, I + 4)
#define SIXTEEN(S, I) EIGHT(S, I), EIGHT(S, I + 8)
#define THIRTY_TWO(S) SIXTEEN(S, 0), SIXTEEN(S, 16)
#define NAMES "%0,%1,%2,%3"
#define SOME_NAMES NAMES ",%4,%5,%6,%7"
#define MORE_NAMES SOME_NAMES ",%8,%9,%10,%11,%12,%13,%14,%15"
#define MOST_NAMES MORE_NAMES ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA                                                                                 \
  "wgmma.mma_async.sync.aligned.m64n" BY_COLUMNS("8", "16", "32", "64") "k16.f32.bf16.bf16 {" \
  BY_COLUMNS(NAMES, SOME_NAMES, MORE_NAMES, MOST_NAMES) "}, "

// sum += a * b^T for tiles a [64, 16] and b [COLUMNS, 16], asynchronously. A warpgroup's warp w holds rows 16 * w
// to 16 * w + 15 in the lane layout of mma.m16n8k16. Rows of a past its matrix are whatever follows in shared memory;
// their sums are never read.
__device__ __forceinline__ void wgmma(float (&sum)[COLUMNS / 2], u32 a, u32 b) {
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0;"
               "mov.b64 a, {" BY_COLUMNS("%4,%6", "%8,%10", "%16,%18", "%32,%34") "};"
               "mov.b64 b, {" BY_COLUMNS("%5,%6", "%9,%10", "%17,%18", "%33,%34") "};" WGMMA "a, b, p, 1, 1, 0, 0;}"
               : BY_COLUMNS(FOUR(sum, 0), EIGHT(sum, 0), SIXTEEN(sum, 0), THIRTY_TWO(sum))
               : "r"(a), "r"(b), "r"(DESCRIPTOR));
}
// The same with a in registers, in the lane layout of mma.m16n8k16.
__device__ __forceinline__ void wgmma(float (&sum)[COLUMNS / 2], u32 a0, u32 a1, u32 a2, u32 a3, u32 b) {
  asm volatile("{.reg .pred p; .reg .b64 b; setp.eq.u32 p, 0, 0;"
               "mov.b64 b, {" BY_COLUMNS("%8,%9", "%12,%13", "%20,%21", "%36,%37") "};" WGMMA
               "{" BY_COLUMNS("%4,%5,%6,%7", "%8,%9,%10,%11", "%16,%17,%18,%19", "%32,%33,%34,%35") "}, b, p, 1, 1, 0;}"
               : BY_COLUMNS(FOUR(sum, 0), EIGHT(sum, 0), SIXTEEN(sum, 0), THIRTY_TWO(sum))
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "r"(DESCRIPTOR));
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
// Keeps the compiler from moving an accumulator while wgmma is in flight.
__device__ __forceinline__ void fence_operand(float& sum) {
  asm volatile("" : "+f"(sum)::"memory");
}

// Copies a box of a tensor of bytes, from (x, 0, z, w) on. ONCE: no other block reads it, so it leaves L2 first.
template <bool ONCE>
__device__ __forceinline__ void copy_box(u32 to, const TensorMap& tensor, int x, int z, int w, u32 barrier) {
  if constexpr (ONCE)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to), "l"(&tensor), "r"(x), "r"(0), "r"(z), "r"(w),
                 "r"(barrier), "l"(evict_first()) : "memory");
  else
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to), "l"(&tensor), "r"(x), "r"(0), "r"(z), "r"(w),
                 "r"(barrier) : "memory");
}

using Sums = float[COLUMN_TILES][COLUMNS / 2];  // of 64 features

// sums += products of a step's inputs b with weights that are widened first. `row` is the lane's first feature, of two.
// Registers of weights do not change while wgmma may read them: each chunk has its own. F is Format, but bf16 is never
// widened and need not compile here.
template <class F>
__device__ __forceinline__ void multiply_widened(Sums& sums, const u8* weights, const u8* scales, int row, u32 b) {
  const u32 select = 0x0100 + threadIdx.x % 4 * 0x0202;  // of eight bytes, the lane's two
  uint4 codes[2][2];
  u32 two_scales[2][SLABS / 2];
  const auto load = [&](int chunk) {  // of 16 bytes
#pragma unroll
    for (int r = 0; r < 2; ++r)
      codes[chunk % 2][r] = *(const uint4*)(weights + (row + 8 * r) * 128 + (chunk ^ row % 8) * 16);
  };
  load(0);
  if constexpr (SCALED)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < SLABS / 2; ++i) two_scales[r][i] = ((const u32*)(scales + (row + 8 * r) * 16))[i];
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const int slab = chunk * SLABS / 8;
    u32 a[2][SLABS];
    if (chunk < 7) load(chunk + 1);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      F::pairs(a[r], codes[chunk % 2][r], select);
      if constexpr (SCALED)
#pragma unroll
        for (int i = 0; i < SLABS; ++i)
          a[r][i] = multiply_bf16x2(a[r][i], __byte_perm(two_scales[r][slab / 2], 0, F::which(slab)));
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < SLABS; i += 2) {
      const int k = (chunk * SLABS + i) / 2;
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; ++n)
        wgmma(sums[n], a[0][i], a[1][i], a[0][i + 1], a[1][i + 1],
              b + slab * (SLAB / 16) + k % 4 * 2 + n * (COLUMNS * 128 / 16));
    }
  }
}

// sums += products of a step's inputs b and weights a.
template <int TILES>
__device__ __forceinline__ void multiply_tiles(Sums (&sums)[TILES], u32 a, u32 b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; ++n)
        wgmma(sums[m][n], a + m * (64 * 128 / 16) + k * 2, b + k * 2 + n * (COLUMNS * 128 / 16));
}

// `out` is where the warp's features begin, and `scales` are those of the lane's two. `features` is a row's length.
template <bool GATED>
__device__ __forceinline__ void write_sums(const Sums& sums, const float (&scales)[2], u16* out, int features) {
  out += threadIdx.x % 32 / 4 * (long long)features + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; ++i, out += 8LL * features) {
      const float4 sum = *(const float4*)(sums[n] + 4 * i);
      const u32 first = pack(sum.x * scales[0], sum.y * scales[0]), second = pack(sum.z * scales[1], sum.w * scales[1]);
      if constexpr (GATED) {
        *(u32*)out = transpose(pack(gated(low(first), low(second)), gated(high(first), high(second))));
      } else {
        *(u32*)out = transpose(first);
        *(u32*)(out + 8) = transpose(second);
      }
    }
}

// GATED: of 16 features, the first eight are gates and the others what they gate. The result of the gate is written.
template <int FEATURES, int WARPGROUPS, int DEPTH, bool GATED>
__device__ __forceinline__ void product(const DenseArgs& s) {
  constexpr int TILES = (FEATURES + 63) / 64 / WARPGROUPS;
  static_assert(FEATURES % 16 == 0, "a box holds sixteens");
  static_assert(WIDENED ? TILES == 1 : WARPGROUPS == 1, "batch_dense.py starts other warpgroups");
  constexpr int INPUTS = SLABS * SLAB, CODES = FEATURES * 128, SCALES = SCALED ? FEATURES * 16 : 0;  // bytes per stage
  extern __shared__ __align__(1024) u8 inputs[];  // of DEPTH stages, then their codes, scales and barriers
  u8 *const codes = inputs + DEPTH * INPUTS, *const scales = codes + DEPTH * CODES;
  const u32 barriers = shared_address(scales + DEPTH * SCALES);
  const int written = GATED ? s.features / 2 : s.features;
  const int steps = s.width / (64 * SLABS), groups = (s.features + FEATURES - 1) / FEATURES, items = groups * s.parts;
  // The last two groups may overlap. Both write the same sums there.
  struct At { int item, part, first, step, end; };
  const auto start_of = [&](int item) {  // divides, so not at every step
    const int part = item / groups, first = min(item % groups * FEATURES, s.features - FEATURES);
    return At{item, part, first, steps * part / s.parts, steps * (part + 1) / s.parts};
  };
  const auto advance = [&](At& at) {
    if (++at.step == at.end) at = start_of(at.item + gridDim.x);
  };
  const auto issue_weights = [&](int stage, const At& at) {
    const int block = at.step / STEPS * (int)Format::bytes(STEPS * 64 * SLABS), sixteens = at.first / 16;
    const u32 barrier = barriers + stage * 8;
    expect_bytes(barrier, INPUTS + CODES + SCALES);
    copy_box<true>(shared_address(codes + stage * CODES), s.codes, block + at.step % STEPS * 128, 0, sixteens, barrier);
    if constexpr (SCALED)
      copy_box<true>(shared_address(scales + stage * SCALES), s.scales, block + Format::scales(0), 0, sixteens, barrier);
  };
  const auto issue_inputs = [&](int stage, const At& at) {
    copy_box<false>(shared_address(inputs + stage * INPUTS), s.x, 0, at.step * SLABS, 0, barriers + stage * 8);
  };

  At next = start_of(blockIdx.x);
  if (threadIdx.x == 0) {
    for (int i = 0; i < DEPTH; ++i) init_barrier(barriers + i * 8);
    fence_barriers();
    At ahead = next;  // weights do not depend on the previous kernels
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1 && ahead.item < items; ++i, advance(ahead)) issue_weights(i, ahead);
  }
  launch_dependent_grids();
  wait_on_dependent_grids();
  if (threadIdx.x == 0)
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1 && next.item < items; ++i, advance(next)) issue_inputs(i, next);
  __syncthreads();  // the barriers are initialised

  const int warp = threadIdx.x / 32 * 16, row = (warp < FEATURES ? warp : 0) + threadIdx.x % 32 / 4;
  int stage = 0, free = DEPTH - 1, parity = 0;  // the stage to multiply, and the one to fill
#pragma unroll 1
  for (At now = start_of(blockIdx.x); now.item < items; now = start_of(now.item + gridDim.x)) {
    Sums sums[TILES] = {};
    float row_scales[2] = {1.f, 1.f};
    if constexpr (Format::ROW_SCALE)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int f = now.first + row + 8 * r, at = GATED ? f / 16 * 8 + f % 8 + r * (s.features / 2) : f;
        row_scales[r] = load_nc4(s.weights + at * Format::row(s.width) + Format::bytes(s.width));
      }
    const auto fence_sums = [&] {
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
          for (int i = 0; i < COLUMNS / 2; ++i) fence_operand(sums[m][n][i]);
    };
#pragma unroll 1
    for (; now.step < now.end; ++now.step) {
      wait_for_bytes(barriers + stage * 8, parity);
      wgmma_wait();
      fence_sums();
      __syncthreads();  // no warp still reads the stage that is filled next
      const u8* weights = codes + stage * CODES;
      const u32 b = descriptor_of(inputs + stage * INPUTS);
      if constexpr (WIDENED)
        multiply_widened<Format>(sums[0], weights, scales + stage * SCALES + now.step % STEPS * (SLABS * 2), row, b);
      else
        multiply_tiles(sums, descriptor_of(weights), b);
      wgmma_commit();
      if (threadIdx.x == 0 && next.item < items) {
        issue_weights(free, next);
        issue_inputs(free, next);
        advance(next);
      }
      free = stage;
      if (++stage == DEPTH) {
        stage = 0;
        parity ^= 1;
      }
    }
    wgmma_wait();
    fence_sums();
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      if (warp + 64 * m >= FEATURES) break;
      u16* out = s.out + (long long)now.part * PADDED_ROWS * written + (now.first + warp + 64 * m) / (GATED ? 2 : 1);
      write_sums<GATED>(sums[m], row_scales, out, written);
    }
  }
}

#define PRODUCT(NAME, FEATURES, WARPGROUPS, DEPTH, GATED)                                                       \
  extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1) NAME(const __grid_constant__ DenseArgs s) { \
    product<FEATURES, WARPGROUPS, DEPTH, GATED>(s);                                                             \
  }
PRODUCTS
