// Weights on their way to a warp: pieces in shared memory, in the order of their use. Part of single.cu.
//
// Each warp has a ring of its own, RING slots for pieces of at most PIECE weights. SLOTS of them are filled or under
// way at any time, with the pieces that come next, of this phase or of later ones, so memory keeps working while the
// blocks wait for each other. More would delay what they hand over, so only a block that is idle fills the others too.
// Compute capability 9.0 copies in bulk, 8.0 by cp.async, 7.5 through registers.

constexpr int SPANS = 5;  // stretches of weights a warp reads in a layer: qkv, out, gate, up, down; each contiguous

// A warp's stretch of weights: where it begins, bytes of a piece, how many. Called seldom, so not inlined.
struct Pieces { const unsigned char* at; u32 bytes; int count; };
__device__ __noinline__ Pieces pieces_of(const LayerWeights* layers, const u16* head, int layer_count, int span);

struct Ring {
  u32 asked, taken;  // pieces
  int span;
  Pieces rest;  // of the stretch that the next copy is from
};

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Of the warp's n-th piece: its slot, and the address of the mbarrier that says the piece is there. Found anew each
// time: of a pointer kept in a structure the compiler does not know that it leads to shared memory.
__device__ __forceinline__ u32 index_of(u32 n) { return (threadIdx.x >> 5) * RING + n % RING; }
__device__ __forceinline__ unsigned char* slot_of(u32 n) {
  extern __shared__ __align__(128) unsigned char slots[];
  return slots + index_of(n) * (PIECE * 2);
}
__device__ __forceinline__ u32 full_of(u32 n) {
  __shared__ u64 full[WARPS * RING];
  return shared_address(full + index_of(n));
}

__device__ __forceinline__ void copy_piece(const Ring& r) {
  unsigned char* to = slot_of(r.asked);
#if __CUDA_ARCH__ >= 900
  if ((threadIdx.x & 31) == 0) {
    const u32 barrier = full_of(r.asked);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(r.rest.bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)), "l"(r.rest.at), "r"(r.rest.bytes), "r"(barrier) : "memory");
  }
#else
  for (u32 i = (threadIdx.x & 31) * 16; i < r.rest.bytes; i += 512) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + i), "l"(r.rest.at + i)
                 : "memory");
#else
    *(uint4*)(to + i) = stream16(r.rest.at + i);
#endif
  }
#endif
}

// Starts the copy of the next piece, if there is one, into the next slot, which is free.
__device__ __forceinline__ void ask(const SingleArgs& s, Ring& r) {
  while (r.rest.count == 0 && r.span < s.layer_count * SPANS)
    r.rest = pieces_of(s.layers, s.head, s.layer_count, ++r.span);
  if (r.rest.count) {
    copy_piece(r);
    r.rest.at += r.rest.bytes;
    --r.rest.count;
  }
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 900
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  ++r.asked;
}
__device__ __forceinline__ Ring make_ring(const SingleArgs& s) {
  Ring r = {0, 0, -1, {nullptr, 0, 0}};
#if __CUDA_ARCH__ >= 900
  if ((threadIdx.x & 31) == 0) {
    for (int i = 0; i < RING; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full_of(i)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncwarp();
#endif
#pragma unroll 1
  for (int i = 0; i < SLOTS; ++i) ask(s, r);
  return r;
}
// The next piece. A lane may find there only what it copied itself: 16 bytes at its own place, and every 512 on. By
// cp.async, a warp with a stock waits for pieces after this one too.
__device__ __forceinline__ const uint4* take(const Ring& r) {
#if __CUDA_ARCH__ >= 900
  u32 done;
  do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                  : "=r"(done) : "r"(full_of(r.taken)), "r"(r.taken / RING & 1) : "memory");
  while (!done);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
#endif
  return (const uint4*)slot_of(r.taken);
}
// Every lane has read its part of the piece taken last.
__device__ __forceinline__ void give(const SingleArgs& s, Ring& r) {
  __syncwarp();
  ++r.taken;
  if (r.asked - r.taken < SLOTS) ask(s, r);
}
// Fills the slots that are kept free otherwise.
__device__ __forceinline__ void stock(const SingleArgs& s, Ring& r) {
  while (r.asked - r.taken < RING) ask(s, r);
}
