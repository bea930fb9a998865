// How weights are stored and multiplied: one struct a format, which the pipeline and the products take as F. Part of
// single.cu.
//
// A matrix is stored by rows, and a row as whole blocks. bytes(n) is the size of n weights, scales included: linear in
// whole blocks, and a multiple of 16. Input<K> is a vector of K inputs in shared memory as the format multiplies it;
// put() takes its 4 * i-th to 4 * i + 3rd values, from all lanes of a warp, which hold consecutive i. dot<N> is this
// lane's part of the product of N weights with the inputs from the VEC * at-th on. Where LANES_SHARE, a lane reads
// bytes of a tile that others copied.

struct Bf16 {
  static constexpr int BLOCK = 8;  // weights
  static constexpr bool LANES_SHARE = false;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights * 2; }

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

// Inputs of the quantised formats: 16-bit integers with one fp32 scale for eight, so that an instruction multiplies two
// of them with weights of a byte. What a bf16 value loses by that is less than 2^-16 of the largest of its eight.
// A scale that is not finite makes all products NaN. `sum`: of the eight integers.
template <int K> struct Fixed { uint4 values[K / VEC]; float scale[K / VEC]; int sum[K / VEC]; };

template <int K>
__device__ __forceinline__ void put_fixed(Fixed<K>& input, int i, float4 v) {
  const u32 sign = 0x7fffffffu;  // as integers, NaN is the largest of all magnitudes
  u32 top = max(max(__float_as_uint(v.x) & sign, __float_as_uint(v.y) & sign),
                max(__float_as_uint(v.z) & sign, __float_as_uint(v.w) & sign));
  top = max(top, __shfl_xor_sync(~0u, top, 1));
  const float most = __uint_as_float(top), f = 32767.f / fmaxf(most, 1e-30f);
  const int a = __float2int_rn(v.x * f), b = __float2int_rn(v.y * f), c = __float2int_rn(v.z * f),
            d = __float2int_rn(v.w * f);
  ((uint2*)input.values)[i] = make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410));
  int sum = a + b + c + d;
  sum += __shfl_xor_sync(~0u, sum, 1);
  if (i % 2 == 0) { input.scale[i / 2] = most * (1.f / 32767.f); input.sum[i / 2] = sum; }
}

// c + the products of two 16-bit integers with two bytes of w: the low ones, or the high ones. Bytes of int8 are signed.
__device__ __forceinline__ int dp2a_low(u32 x, u32 w, int c, bool is_signed) {
  if (is_signed) asm("dp2a.lo.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(x), "r"(w));
  else asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(c) : "r"(x), "r"(w));
  return c;
}
__device__ __forceinline__ int dp2a_high(u32 x, u32 w, int c, bool is_signed) {
  if (is_signed) asm("dp2a.hi.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(x), "r"(w));
  else asm("dp2a.hi.s32.u32 %0, %1, %2, %0;" : "+r"(c) : "r"(x), "r"(w));
  return c;
}
// The same for eight inputs and the eight weights in two words.
__device__ __forceinline__ int dot8(u32 first, u32 second, uint4 x, int c, bool is_signed) {
  c = dp2a_low(x.x, first, c, is_signed);
  c = dp2a_high(x.y, first, c, is_signed);
  c = dp2a_low(x.z, second, c, is_signed);
  return dp2a_high(x.w, second, c, is_signed);
}

// The formats of talker/quantize.py: blocks of 512 weights, of which a lane has 8 * lane to 8 * lane + 7 of either half,
// and behind them the scales of their groups.

struct Int8 {
  static constexpr int BLOCK = 512;
  static constexpr bool LANES_SHARE = true;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights / BLOCK * 528; }

  template <int K> using Input = Fixed<K>;
  template <int K> __device__ __forceinline__ static void put(Input<K>& input, int i, float4 v) { put_fixed(input, i, v); }
  template <int K>
  __device__ __forceinline__ static void put(Input<K>& input, int i, uint2 bf16s) { put_fixed(input, i, unpack4(bf16s)); }

  template <int N, int K>
  __device__ __forceinline__ static float dot(const uint4* block, const Input<K>& input, int at) {
    static_assert(N == BLOCK, "a block at a time");
    const int lane = threadIdx.x & 31, first = at + lane, second = first + 32;
    const uint4 w = block[lane];
    const float* scale = (const float*)(block + 32) + lane / 16;
    const int a = dot8(w.x, w.y, input.values[first], 0, true), b = dot8(w.z, w.w, input.values[second], 0, true);
    return fmaf(scale[0] * input.scale[first], (float)a, scale[2] * input.scale[second] * (float)b);
  }
};

struct Int4 {
  static constexpr int BLOCK = 512;
  static constexpr bool LANES_SHARE = true;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights / BLOCK * 272; }

  template <int K> using Input = Fixed<K>;
  template <int K> __device__ __forceinline__ static void put(Input<K>& input, int i, float4 v) { put_fixed(input, i, v); }
  template <int K>
  __device__ __forceinline__ static void put(Input<K>& input, int i, uint2 bf16s) { put_fixed(input, i, unpack4(bf16s)); }

  template <int N, int K>
  __device__ __forceinline__ static float dot(const uint4* block, const Input<K>& input, int at) {
    static_assert(N == BLOCK, "a block at a time");
    const u32 nibbles = 0x0f0f0f0fu;  // stored plus 8
    const int lane = threadIdx.x & 31, first = at + lane, second = first + 32;
    const uint2 w = ((const uint2*)block)[lane];
    const u16* scale = (const u16*)(block + 16) + lane / 8;
    const int a = dot8(w.x & nibbles, w.y & nibbles, input.values[first], -8 * input.sum[first], false);
    const int b = dot8(w.x >> 4 & nibbles, w.y >> 4 & nibbles, input.values[second], -8 * input.sum[second], false);
    return fmaf(bf16(scale[0]) * input.scale[first], (float)a, bf16(scale[4]) * input.scale[second] * (float)b);
  }
};

using Format = FORMAT;  // of the layers' matrices
using HeadFormat = HEAD_FORMAT;
