// Integer types by width, and bf16 as bits.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ float low(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float bf16(u16 v) { return __uint_as_float((u32)v << 16); }

// Packs two values as bf16, `a` in the low half, rounded to nearest even. NaN is kept: rounding by addition would carry
// CUDA's NaN, 0x7fffffff, into -0.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ u32 pack(float a, float b) {
  u32 to;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to) : "f"(b), "f"(a));
  return to;
}
#else
__device__ __forceinline__ u32 to_bf16(float v) {
  const u32 b = __float_as_uint(v);
  return v != v ? 0x7fffu : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}
__device__ __forceinline__ u32 pack(float a, float b) { return to_bf16(a) | to_bf16(b) << 16; }
#endif
__device__ __forceinline__ float4 unpack4(uint2 v) { return make_float4(low(v.x), high(v.x), low(v.y), high(v.y)); }
__device__ __forceinline__ uint2 pack4(float4 v) { return make_uint2(pack(v.x, v.y), pack(v.z, v.w)); }
