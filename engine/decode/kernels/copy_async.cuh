// Asynchronous copies to shared memory, in groups. Part of batch.cu and prompt.cu.

// ptxas encodes a copy with a policy of L2 wrongly, as an illegal instruction, if the address in shared memory is a
// register plus a uniform register. From 13.1 on that occurs in these kernels, so there is no policy there.
#define COPIES_WITH_POLICY (__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ <= 1300)

enum Reuse { BY_BLOCK, BY_OTHERS, NEVER };  // who reads the bytes again: decides whether they stay in L1 and L2
template <int BYTES, Reuse REUSE = BY_BLOCK>  // only 16 bytes can pass by L1
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  const u32 at = (u32)__cvta_generic_to_shared(to);
  if constexpr (REUSE == BY_BLOCK)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES) : "memory");
  else if constexpr (REUSE == BY_OTHERS || !COPIES_WITH_POLICY)
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES) : "memory");
  else
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES),
                 "l"(evict_first()) : "memory");
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
__device__ __forceinline__ void wait_for_copies() {  // except the last LATER groups
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#endif
}
