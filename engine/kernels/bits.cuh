// Integers by their width, and bf16 as bits.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

__device__ __forceinline__ float low(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float bf16(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u32 to_bf16(float v) {  // round to nearest even; inputs are finite
  u32 b = __float_as_uint(v);
  return (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}
__device__ __forceinline__ u32 pack(float a, float b) { return to_bf16(a) | (to_bf16(b) << 16); }
