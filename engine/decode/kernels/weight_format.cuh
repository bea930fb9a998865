// How weights are stored: one struct a format, which the pipeline and the products take as F. Part of single.cu.
//
// A matrix is stored by rows, and a row as equal tiles of whole blocks. bytes(n) is the size of n weights, scales
// included: linear in whole blocks, and a multiple of 16. dot<N> is this lane's part of the product of a tile of N
// weights with as many bf16 inputs, VEC to a uint4. Below compute capability 9.0 a lane sees only the bytes that it
// copied itself, 16 at 16 * lane and at every 512 from there, until a __syncwarp() (see `wait` in weight_pipeline.cuh).

struct Bf16 {
  static constexpr int BLOCK = 8;  // weights
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights * 2; }

  template <int N>
  __device__ __forceinline__ static float dot(const uint4* tile, const uint4* x) {
    constexpr int LOADS = N / 8;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int c = 0; c < (LOADS + 31) / 32; ++c) {
      const int load = c * 32 + (threadIdx.x & 31);
      if (LOADS % 32 != 0 && load >= LOADS) continue;
      const uint4 a = tile[load], b = x[load];
      sum.x = fmaf(low(a.x), low(b.x), sum.x); sum.y = fmaf(high(a.x), high(b.x), sum.y);
      sum.x = fmaf(low(a.y), low(b.y), sum.x); sum.y = fmaf(high(a.y), high(b.y), sum.y);
      sum.x = fmaf(low(a.z), low(b.z), sum.x); sum.y = fmaf(high(a.z), high(b.z), sum.y);
      sum.x = fmaf(low(a.w), low(b.w), sum.x); sum.y = fmaf(high(a.w), high(b.w), sum.y);
    }
    return sum.x + sum.y;
  }
};

// The quantised formats of talker/quantize.py: blocks of 512 weights, of which a lane has 8 * lane to 8 * lane + 7 of
// either half, and behind them the scales of their groups. Codes become floats by arithmetic on their bits: 2^23 + n
// and, as bf16, 128 + n are exact.

// The product of eight inputs and the eight weights that `code` takes out of two words, four a word, in pairs.
template <class Code>
__device__ __forceinline__ float dot_codes(u32 first, u32 second, uint4 x, Code code) {
  float2 sum = make_float2(0.f, 0.f);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 two = i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
    const float2 w = code(i < 2 ? first : second, i & 1);
    sum.x = fmaf(w.x, low(two), sum.x);
    sum.y = fmaf(w.y, high(two), sum.y);
  }
  return sum.x + sum.y;
}

struct Int8 {
  static constexpr int BLOCK = 512;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights / BLOCK * 528; }

  __device__ __forceinline__ static float dot_bytes(u32 first, u32 second, uint4 x) {
    return dot_codes(first ^ 0x80808080u, second ^ 0x80808080u, x, [](u32 word, int half) {
      const u32 even = __byte_perm(word, 0x4b000000u, 0x7540 + 2 * half);
      const u32 odd = __byte_perm(word, 0x4b000000u, 0x7541 + 2 * half);
      return make_float2(__uint_as_float(even) - 8388736.f, __uint_as_float(odd) - 8388736.f);  // 2^23 + 128
    });
  }
  template <int N>
  __device__ __forceinline__ static float dot(const uint4* tile, const uint4* x) {
    const int lane = threadIdx.x & 31;
#if __CUDA_ARCH__ < 900
    __syncwarp();
#endif
    float sum = 0.f;
#pragma unroll
    for (int b = 0; b < N / BLOCK; ++b, tile += 33, x += 64) {
      const uint4 w = tile[lane];
      const float* scale = (const float*)(tile + 32) + lane / 16;
      sum = fmaf(scale[0], dot_bytes(w.x, w.y, x[lane]), sum);
      sum = fmaf(scale[2], dot_bytes(w.z, w.w, x[32 + lane]), sum);
    }
    return sum;
  }
};

struct Int4 {
  static constexpr int BLOCK = 512;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights / BLOCK * 272; }

  __device__ __forceinline__ static float dot_nibbles(u32 first, u32 second, uint4 x) {  // the low ones of bytes
    return dot_codes(first & 0x0f0f0f0fu, second & 0x0f0f0f0fu, x, [](u32 word, int half) {
      const u32 pair = __byte_perm(word, 0x43434343u, half ? 0x4342 : 0x4140);
      return make_float2(low(pair) - 136.f, high(pair) - 136.f);  // 128 + 8
    });
  }
  template <int N>
  __device__ __forceinline__ static float dot(const uint4* tile, const uint4* x) {
    const int lane = threadIdx.x & 31;
#if __CUDA_ARCH__ < 900
    __syncwarp();
#endif
    float sum = 0.f;
#pragma unroll
    for (int b = 0; b < N / BLOCK; ++b, tile += 17, x += 64) {
      const uint2 w = ((const uint2*)tile)[lane];
      const u16* scale = (const u16*)(tile + 16) + lane / 8;
      sum = fmaf(bf16(scale[0]), dot_nibbles(w.x, w.y, x[lane]), sum);
      sum = fmaf(bf16(scale[4]), dot_nibbles(w.x >> 4, w.y >> 4, x[32 + lane]), sum);
    }
    return sum;
  }
};

using Format = FORMAT;  // of the layers' matrices
using HeadFormat = HEAD_FORMAT;
