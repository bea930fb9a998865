// Talker widths, loads by cache policy, and warp sums, shared by the talker's kernels.

#include "bf16.cuh"

constexpr int DIM = 128, GROUP = HEADS / KV_HEADS;
constexpr int Q_SIZE = HEADS * DIM, KV_SIZE = KV_HEADS * DIM, QKV_SIZE = Q_SIZE + 2 * KV_SIZE;
constexpr int VEC = 8;  // bf16 values in a load of 16 bytes

__device__ __forceinline__ uint4 load_nc16(const void* p) {  // read once: bypasses L1
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float load_nc4(const void* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ float4 load_cg4(const float* p) {  // written by other blocks: read from L2, never L1
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float load_cg(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint4 load_cg16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// L2 policy of weights, which a step reads once: without it they displace what is read again. From 9.0 on, where it was measured.
__device__ __forceinline__ u64 evict_first() {
  u64 policy = 0;
#if __CUDA_ARCH__ >= 900
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
// Programmatic dependent launch, see `launch` in nvrtc.py. After the first call, the next kernel's blocks may start.
// After the second, a kernel sees the writes of the kernels before it.
__device__ __forceinline__ void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void unpack8(uint4 v, float* f) {
  f[0] = low(v.x); f[1] = high(v.x); f[2] = low(v.y); f[3] = high(v.y);
  f[4] = low(v.z); f[5] = high(v.z); f[6] = low(v.w); f[7] = high(v.w);
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
