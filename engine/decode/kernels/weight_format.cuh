// Storage formats of weights and products with them, one struct per format. Part of single.cu, batch.cu and, if quantised,
// of prompt.cu.
//
// A matrix is stored by rows, and a row in whole blocks. bytes(n) is the size of n weights in whole blocks; row(n) is
// the size of a row of n weights, including the row's scale if the format has one (ROW_SCALE). All are multiples of 16.
// Input<K> is a vector of K inputs in shared memory, prepared for the format. put() stores four of its values, from
// 4 * i on; all lanes of a warp call it with consecutive i.

// dot<N> is this lane's part of the product of N weights with the inputs from VEC * at on.
struct Bf16 {
  static constexpr int BLOCK = 8;  // weights
  static constexpr int BITS = 16, GROUP = 0;
  static constexpr bool ROW_SCALE = false;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights * 2; }
  __host__ __device__ static constexpr long long row(long long weights) { return bytes(weights); }
  __host__ __device__ static constexpr int scales(int) { return 0; }  // it has none

  template <int K> struct Input { uint4 values[K / VEC]; };
  template <int K>
  __device__ __forceinline__ static void put(Input<K>& input, int i, uint2 bf16s) { ((uint2*)input.values)[i] = bf16s; }
  template <int K>
  __device__ __forceinline__ static void put(Input<K>& input, int i, float4 v) { put(input, i, pack4(v)); }

  template <int N, int K>
  __device__ __forceinline__ static float dot(const uint4* weights, const Input<K>& input, int at) {
    constexpr int LOADS = N / 8;
    const uint4* x = input.values + at;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int c = 0; c < (LOADS + 31) / 32; ++c) {
      const int load = c * 32 + (threadIdx.x & 31);
      if (LOADS % 32 != 0 && load >= LOADS) continue;
      const uint4 a = weights[load], b = x[load];
      sum.x = fmaf(low(a.x), low(b.x), sum.x); sum.y = fmaf(high(a.x), high(b.x), sum.y);
      sum.x = fmaf(low(a.y), low(b.y), sum.x); sum.y = fmaf(high(a.y), high(b.y), sum.y);
      sum.x = fmaf(low(a.z), low(b.z), sum.x); sum.y = fmaf(high(a.z), high(b.z), sum.y);
      sum.x = fmaf(low(a.w), low(b.w), sum.x); sum.y = fmaf(high(a.w), high(b.w), sum.y);
    }
    return sum.x + sum.y;
  }
};

// Formats of talker/quantize.py: blocks of 512 weights, 16 per lane. Inputs are 16-bit integers with one fp32 scale per
// eight, so that one instruction multiplies two inputs by two byte weights. A bf16 value loses less than 2^-16 of the
// largest of its eight. If one of the eight is not finite, the scale and all products are not finite either. In a block
// of 64 eights, the even ones come first: a lane takes two consecutive eights, so neighbouring lanes read neighbouring
// addresses.
template <int K> struct FixedInput { uint4 values[K / VEC]; float scale[K / VEC]; };
__device__ __forceinline__ int place_of(int eight) { return (eight & ~63) | (eight & 1) << 5 | (eight >> 1 & 31); }

struct Quantised {
  static constexpr int BLOCK = 512;
  template <int K> using Input = FixedInput<K>;

  template <int K>
  __device__ __forceinline__ static void put(Input<K>& input, int i, float4 v) {
    const u32 magnitude = 0x7fffffffu;  // as integers, NaN is the largest
    u32 top = max(max(__float_as_uint(v.x) & magnitude, __float_as_uint(v.y) & magnitude),
                  max(__float_as_uint(v.z) & magnitude, __float_as_uint(v.w) & magnitude));
    top = max(top, __shfl_xor_sync(~0u, top, 1));
    const float most = __uint_as_float(top), f = __fdividef(32767.f, fmaxf(most, 1e-30f));
    const u32 a = __float2int_rn(v.x * f), b = __float2int_rn(v.y * f);
    const u32 c = __float2int_rn(v.z * f), d = __float2int_rn(v.w * f);
    const int at = place_of(i / 2);
    ((uint2*)input.values)[2 * at + i % 2] = make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410));
    if (i % 2 == 0) input.scale[at] = most * (1.f / 32767.f);
  }
  template <int K>
  __device__ __forceinline__ static void put(Input<K>& input, int i, uint2 bf16s) {
    put(input, i, unpack4(bf16s));
  }
};

// A lane's inputs for C blocks, held in registers over matrix rows: reading them from shared memory each time would
// take longer than reading the weights.
template <int C> struct HeldInput { uint4 values[2 * C]; float scale[2 * C]; };

// c + products of two 16-bit integers with w's two low bytes, or its two high bytes. Bytes are signed.
__device__ __forceinline__ int dp2a_low(u32 x, u32 w, int c) {
  asm("dp2a.lo.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(x), "r"(w));
  return c;
}
__device__ __forceinline__ int dp2a_high(u32 x, u32 w, int c) {
  asm("dp2a.hi.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(x), "r"(w));
  return c;
}
__device__ __forceinline__ float dot8(uint4 x, u32 first, u32 second) {  // the weights are in two words
  int sum = dp2a_low(x.x, first, 0);
  sum = dp2a_high(x.y, first, sum);
  sum = dp2a_low(x.z, second, sum);
  return (float)dp2a_high(x.w, second, sum);
}

// (a & b) | c in one instruction, which the compiler does not find for two constants.
__device__ __forceinline__ u32 and_or(u32 a, u32 b, u32 c) {
  u32 v;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

__device__ __forceinline__ u32 and_xor(u32 a, u32 b, u32 c) {  // (a & b) ^ c
  u32 v;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

// Sums of two pairs of bf16 values, which are exact.
__device__ __forceinline__ u32 add_bf16x2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
  u32 sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
  return sum;
#else
  return pack(low(a) + low(b), high(a) + high(b));
#endif
}

// Products of two pairs of bf16 values.
__device__ __forceinline__ u32 multiply_bf16x2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
  u32 product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
#else
  return pack(low(a) * low(b), high(a) * high(b));
#endif
}

__device__ __forceinline__ float fp16(u16 v) {
  float to;
  asm("cvt.f32.f16 %0, %1;" : "=f"(to) : "h"(v));
  return to;
}

// Widens a lane's 16 weights of a block: each byte of `codes` times `scale`.
__device__ __forceinline__ void widen_bytes(float (&v)[16], uint4 codes, float scale) {
  const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = (float)(signed char)(words[i / 4] >> i % 4 * 8) * scale;
}

// widen() returns a lane's 16 weights of a block; `end` is where the row's blocks end.
//
// dot() is this lane's part of the product of a block with the b-th block of held inputs, without the row's scale.
//
// The rest is for batch products, which process a block in eight steps of 64 weights. A matrix row's step is stored in
// shared memory in quarters, quarter i at swizzled(i, row), so that lanes of several rows use different banks.
// eight() returns weights 8 * t to 8 * t + 7 of a half step; codes() returns two of a word's four codes as bf16.
// pairs() returns two codes of each eight in 16 bytes as bf16; `select` has their bytes' numbers in nibbles 0 and 2.
// Without a row scale, GROUP weights share one scale, and a step's scales are in the word at scales(step) of a block.
// With GROUP 64, this word also has the neighbouring step's scale, and products use code times scale rounded to bf16,
// like torch's. With GROUP 32, products use codes, and the sums are scaled.
struct Int8 : Quantised {
  static constexpr int BITS = 8, GROUP = 0;
  static constexpr float UNIT = 1.f;  // of dot8's weights, in codes
  static constexpr bool ROW_SCALE = true;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights; }
  __host__ __device__ static constexpr long long row(long long weights) { return weights + 16; }
  __host__ __device__ static constexpr int scales(int) { return 0; }  // a block has none
  __device__ __forceinline__ static u32 which(int) { return 0; }

  __device__ __forceinline__ static void widen(float (&v)[16], const u8* block, const u8* end) {
    widen_bytes(v, ((const uint4*)block)[threadIdx.x & 31], *(const float*)end);
  }

  template <int C>
  __device__ __forceinline__ static float dot(const uint4* block, const HeldInput<C>& x, int b) {
    const uint4 w = block[threadIdx.x & 31];
    return fmaf(x.scale[2 * b], dot8(x.values[2 * b], w.x, w.y),
                x.scale[2 * b + 1] * dot8(x.values[2 * b + 1], w.z, w.w));
  }

  __device__ __forceinline__ static int swizzled(int i, int row) { return i ^ (row & 2); }
  __device__ __forceinline__ static uint2 eight(const u8* step, int row, int half, int t) {
    return *(const uint2*)(step + swizzled(2 * half + t / 2, row) * 16 + t % 2 * 8);
  }
  __device__ __forceinline__ static u32 codes(u32 four, int i) {
    const u32 pair = __byte_perm(four, 0x43434343u, i ? 0x4342 : 0x4140);
    return add_bf16x2(pair & 0xff7fff7fu, and_or(pair, 0x00800080u, 0xc300c300u));  // 128 + 7 bits, less 128 or 256
  }
  __device__ __forceinline__ static void pairs(u32 (&to)[2], uint4 codes, u32 select) {
    const u32 of[2] = {__byte_perm(codes.x, codes.y, select), __byte_perm(codes.z, codes.w, select)};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      to[i] = add_bf16x2(and_or(of[i], 0x007f007fu, 0x43004300u), and_or(of[i], 0x00800080u, 0xc300c300u));
  }
};

struct Q8_0 : Int8 {
  static constexpr int GROUP = 32;
  static constexpr bool ROW_SCALE = false;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights / BLOCK * 544; }
  __host__ __device__ static constexpr long long row(long long weights) { return bytes(weights); }
  __host__ __device__ static constexpr int scales(int step) { return BLOCK + step * 4; }
  __device__ __forceinline__ static u32 which(int) { return 0x3210; }

  __device__ __forceinline__ static void widen(float (&v)[16], const u8* block, const u8*) {
    const int lane = threadIdx.x & 31;
    widen_bytes(v, ((const uint4*)block)[lane], fp16(((const u16*)(block + BLOCK))[lane / 2]));
  }

  template <int C>
  __device__ __forceinline__ static float dot(const uint4* block, const HeldInput<C>& x, int b) {
    return fp16(((const u16*)(block + BLOCK / 16))[(threadIdx.x & 31) / 2]) * Int8::dot(block, x, b);
  }
};

struct Int4 : Quantised {
  static constexpr int BITS = 4, GROUP = 64;
  static constexpr float UNIT = 1.f / 16;  // a code is the high half of a signed byte
  static constexpr bool ROW_SCALE = false;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights / BLOCK * 272; }
  __host__ __device__ static constexpr long long row(long long weights) { return bytes(weights); }
  __host__ __device__ static constexpr int scales(int step) { return BLOCK / 2 + step / 2 * 4; }
  __device__ __forceinline__ static u32 which(int step) { return step % 2 ? 0x3232 : 0x1010; }

  __device__ __forceinline__ static void widen(float (&v)[16], const u8* block, const u8*) {
    const int lane = threadIdx.x & 31;
    const u32 high_halves = 0xf0f0f0f0u;  // 16 times a code
    const uint2 w = ((const uint2*)block)[lane];
    widen_bytes(v, make_uint4(w.x << 4 & high_halves, w.y << 4 & high_halves, w.x & high_halves, w.y & high_halves),
                bf16(((const u16*)(block + BLOCK / 2))[lane / 4]) * UNIT);
  }

  template <int C>
  __device__ __forceinline__ static float dot(const uint4* block, const HeldInput<C>& x, int b) {
    const int lane = threadIdx.x & 31;
    const u32 high_halves = 0xf0f0f0f0u;
    const uint2 w = ((const uint2*)block)[lane];
    const float scale = bf16(((const u16*)(block + 16))[lane / 4]);
    return scale * fmaf(x.scale[2 * b], dot8(x.values[2 * b], w.x << 4 & high_halves, w.y << 4 & high_halves),
                        x.scale[2 * b + 1] * dot8(x.values[2 * b + 1], w.x & high_halves, w.y & high_halves));
  }

  __device__ __forceinline__ static int swizzled(int i, int) { return i; }
  __device__ __forceinline__ static uint2 eight(const u8* step, int, int half, int t) {
    const uint2 both = *(const uint2*)(step + (2 * half + t / 2) * 8);
    return make_uint2(both.x >> t % 2 * 4 & 0x0f0f0f0fu, both.y >> t % 2 * 4 & 0x0f0f0f0fu);
  }
  __device__ __forceinline__ static u32 codes(u32 four, int i) {
    const u32 pair = __byte_perm(four ^ 0x08080808u, 0x43434343u, i ? 0x4342 : 0x4140);
    return add_bf16x2(pair, 0xc308c308u);  // 128 + 8 + code, less 136
  }
  __device__ __forceinline__ static void pairs(u32 (&to)[4], uint4 codes, u32 select) {
    const u32 of[2] = {__byte_perm(codes.x, codes.y, select), __byte_perm(codes.z, codes.w, select)};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = add_bf16x2(and_xor(of[i / 2] >> i % 2 * 4, 0x000f000fu, 0x43084308u), 0xc308c308u);
  }
};

using Format = FORMAT;  // of the layers' matrices
