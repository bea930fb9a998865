// Widths, loads and sums over a warp, for all kernels of the talker.

#include "bf16.cuh"

constexpr int DIM = 128, GROUP = HEADS / KV_HEADS;
constexpr int Q_ROWS = HEADS * DIM, KV_ROWS = KV_HEADS * DIM, QKV_ROWS = Q_ROWS + 2 * KV_ROWS;
constexpr int MAX_SPLITS = 32, LANE = 8;  // a lane reads 16 bytes, 8 weights, at a time

__device__ __forceinline__ uint4 stream16(const void* p) {  // read once: no place in L1
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float4 fresh4(const float* p) {  // written by other blocks: from L2, never from L1
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float fresh(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint4 cached16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
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
