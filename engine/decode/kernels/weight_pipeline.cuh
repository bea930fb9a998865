// Multistage shared-memory pipeline that prefetches a warp's weights. Part of single.cu.
//
// Each warp owns a circular buffer of STAGES tiles of at most TILE_BYTES, with the steps issue, wait, release. It keeps
// PREFETCH tiles in flight or filled, in order of use and across phases and layers, so that memory stays busy while
// blocks wait for each other. Deeper prefetch would delay the exchange behind weight loads, so only an idle block fills
// all STAGES. Compute capability 9.0 uses bulk copies (TMA), 8.0 cp.async, 7.5 registers.

#include "bulk_copy.cuh"

template <class F> __host__ __device__ constexpr bool is_quantised() { return F::BLOCK > 32 * VEC; }
constexpr bool RUNS_ARE_TILES = !is_quantised<Format>();
constexpr int MATRICES = 5;  // per layer, in streaming order: qkv, out, gate, up, down; the head follows the last layer

// A warp's part of one matrix: evenly spaced runs of contiguous bytes, all of the same length, copied tile by tile. A
// run's last tile may be shorter. tile_range is rarely called, so it is not inlined.
struct TileRange {
  const u8* at;  // next tile
  u32 run, gap;  // bytes in a run, and between runs
  u32 left;      // bytes left in the current run
  int runs;
};
__device__ __noinline__ TileRange tile_range(const LayerWeights* layers, const u8* head, int layer_count, int matrix);

struct Pipeline {
  u32 issued, released;  // tiles so far
  int matrix;            // of the next copy, counted over all layers
  TileRange rest;        // part of that matrix not issued yet
};

// Stage of the warp's n-th tile, and the address of its "full" mbarrier. Computed each time, because the compiler loses
// track of the shared address space of a pointer kept in a struct.
__device__ __forceinline__ u32 stage_of(u32 n) { return (threadIdx.x >> 5) * STAGES + n % STAGES; }
__device__ __forceinline__ u8* tile_at(u32 n) {
  extern __shared__ __align__(128) u8 stages[];
  return stages + stage_of(n) * TILE_BYTES;
}
__device__ __forceinline__ u32 full_barrier(u32 n) {
  __shared__ u64 full[WARPS * STAGES];
  return shared_address(full + stage_of(n));
}

__device__ __forceinline__ void copy_tile(const Pipeline& p, u32 bytes) {
  u8* to = tile_at(p.issued);
#if __CUDA_ARCH__ >= 900
  if ((threadIdx.x & 31) == 0) {
    const u32 barrier = full_barrier(p.issued);
    expect_bytes(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)), "l"(p.rest.at), "r"(bytes), "r"(barrier),
                 "l"(evict_first()) : "memory");
  }
#else
  for (u32 i = (threadIdx.x & 31) * 16; i < bytes; i += 512) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + i), "l"(p.rest.at + i)
                 : "memory");
#else
    *(uint4*)(to + i) = load_nc16(p.rest.at + i);
#endif
  }
#endif
}

// Starts copying the next tile, if any, into the next stage, which must be free.
__device__ __forceinline__ void issue(const SingleArgs& s, Pipeline& p) {
  while (p.rest.runs == 0 && p.matrix < s.layer_count * MATRICES)
    p.rest = tile_range(s.layers, s.head, s.layer_count, ++p.matrix);
  if (p.rest.runs) {
    const u32 bytes = RUNS_ARE_TILES ? p.rest.run : min(p.rest.left, (u32)TILE_BYTES);
    copy_tile(p, bytes);
    p.rest.at += bytes;
    p.rest.left -= bytes;
    if (RUNS_ARE_TILES || p.rest.left == 0) {
      p.rest.at += p.rest.gap;
      p.rest.left = p.rest.run;
      --p.rest.runs;
    }
  }
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 900
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  ++p.issued;
}
__device__ __forceinline__ Pipeline start_pipeline(const SingleArgs& s) {
  Pipeline p = {0, 0, -1, {}};
#if __CUDA_ARCH__ >= 900
  if ((threadIdx.x & 31) == 0) {
    for (int i = 0; i < STAGES; ++i) init_barrier(full_barrier(i));
    fence_barriers();
  }
  __syncwarp();
#endif
#pragma unroll 1
  for (int i = 0; i < PREFETCH; ++i) issue(s, p);
  return p;
}
// Waits for the oldest tile. Below 9.0, a lane sees only the bytes that it copied itself: 16 bytes at 16 * lane, and
// every 512 bytes from there. With cp.async, a warp that has filled all its stages also waits for later tiles.
__device__ __forceinline__ void wait(const Pipeline& p) {
#if __CUDA_ARCH__ >= 900
  wait_for_bytes(full_barrier(p.released), p.released / STAGES & 1);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PREFETCH - 1) : "memory");
#endif
}
// Frees the stage of the oldest tile once all lanes have read it, and keeps PREFETCH tiles in flight.
__device__ __forceinline__ void release(const SingleArgs& s, Pipeline& p) {
  __syncwarp();
  ++p.released;
  if (p.issued - p.released < PREFETCH) issue(s, p);
}
__device__ __forceinline__ void fill(const SingleArgs& s, Pipeline& p) {
  while (p.issued - p.released < STAGES) issue(s, p);
}
