// How weights are stored: one struct a format, which the pipeline and the products take as F. Part of single.cu.
//
// A matrix is stored by rows, and a row as equal tiles. bytes(n) is the size of n weights in whole tiles, scales and
// padding included: linear in n, and a multiple of 16 for a tile. dot() multiplies one 16-byte load of a tile, PER_LOAD
// weights, with as many bf16 inputs, VEC to a uint4, and adds to a pair of sums. Below compute capability 9.0 a lane
// sees only what it copied itself, its own loads, until a __syncwarp() (see `wait` in weight_pipeline.cuh).

struct Bf16 {
  static constexpr int PER_LOAD = 8;
  __host__ __device__ static constexpr long long bytes(long long weights) { return weights * 2; }

  __device__ __forceinline__ static float2 dot(const uint4* tile, int load, const uint4* x, float2 sum) {
    const uint4 a = tile[load], b = x[load];
    sum.x = fmaf(low(a.x), low(b.x), sum.x); sum.y = fmaf(high(a.x), high(b.x), sum.y);
    sum.x = fmaf(low(a.y), low(b.y), sum.x); sum.y = fmaf(high(a.y), high(b.y), sum.y);
    sum.x = fmaf(low(a.z), low(b.z), sum.x); sum.y = fmaf(high(a.z), high(b.z), sum.y);
    sum.x = fmaf(low(a.w), low(b.w), sum.x); sum.y = fmaf(high(a.w), high(b.w), sum.y);
    return sum;
  }
};

using Format = FORMAT;  // of the layers' matrices
using HeadFormat = HEAD_FORMAT;
