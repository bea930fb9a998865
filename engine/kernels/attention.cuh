// One query against the filled part of the cache, all heads, split over the sequence. Part of decode.cu.

// Per-head norm and rotation of one vector of 128, four values a lane: dimensions 4 * lane .. 4 * lane + 3.
__device__ __forceinline__ float4 norm_rotate(const Step& s, float4 v, const u16* norm, int at) {
  const int lane = threadIdx.x & 31;
#if HAS_QK_NORM
  const float scale = rsqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) * (1.f / DIM) + EPS);
  const uint2 w = *(const uint2*)(norm + lane * 4);
  v = make_float4(v.x * scale * low(w.x), v.y * scale * high(w.x), v.z * scale * low(w.y), v.w * scale * high(w.y));
#endif
  const float sign = lane < 16 ? -1.f : 1.f;
  const float4 o = make_float4(sign * __shfl_xor_sync(~0u, v.x, 16), sign * __shfl_xor_sync(~0u, v.y, 16),
                               sign * __shfl_xor_sync(~0u, v.z, 16), sign * __shfl_xor_sync(~0u, v.w, 16));
  const uint2 c = *(const uint2*)(s.cos + (long long)at * DIM + lane * 4);
  const uint2 n = *(const uint2*)(s.sin + (long long)at * DIM + lane * 4);
  return make_float4(v.x * low(c.x) + o.x * low(n.x), v.y * high(c.x) + o.y * high(n.x),
                     v.z * low(c.y) + o.z * low(n.y), v.w * high(c.y) + o.w * high(n.y));
}

// Writes this step's key and value and puts the rotated queries of a kv head into shared memory, scaled.
__device__ __forceinline__ void place_qkv(const Step& s, const u16* norm, int kv, int at, bool owner, u16* keys,
                                          u16* values, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp < GROUP) {
    const int head = kv * GROUP + warp;
    float4 q = norm_rotate(s, fresh4(s.qkv + head * DIM + lane * 4), norm + head * DIM, at);
    const float scale = 0.08838834764831845f;  // 128 ** -0.5
    *(float4*)(&sh.q[warp][lane * 4]) = make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale);
  } else if (warp == GROUP && owner) {
    const float4 k = norm_rotate(s, fresh4(s.qkv + Q_ROWS + kv * DIM + lane * 4), norm + (HEADS + kv) * DIM, at);
    *(uint2*)(keys + (long long)at * DIM + lane * 4) = make_uint2(pack(k.x, k.y), pack(k.z, k.w));
  } else if (warp == GROUP + 1 && owner) {
    const float4 v = fresh4(s.qkv + Q_ROWS + KV_ROWS + kv * DIM + lane * 4);
    *(uint2*)(values + (long long)at * DIM + lane * 4) = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
  }
  __syncthreads();
}

__device__ __forceinline__ void unpack8(uint4 v, float* f) {
  f[0] = low(v.x); f[1] = high(v.x); f[2] = low(v.y); f[3] = high(v.y);
  f[4] = low(v.z); f[5] = high(v.z); f[6] = low(v.w); f[7] = high(v.w);
}

// Half a warp takes one position: 16 lanes of 8 dimensions each. Positions [from, to).
__device__ __forceinline__ void attend_span(const u16* keys, const u16* values, int from, int to, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = lane & 15, half = lane >> 4;
  float q[GROUP][8], acc[GROUP][8], m[GROUP], l[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    m[g] = -1e30f; l[g] = 0.f;
#pragma unroll
    for (int d = 0; d < 8; ++d) { q[g][d] = sh.q[g][part * 8 + d]; acc[g][d] = 0.f; }
  }
  constexpr int DEPTH = 2;
  for (int base = from; base < to; base += WARPS * 2 * DEPTH) {
    uint4 k16[DEPTH], v16[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const int at = min(base + (i * WARPS + warp) * 2 + half, to - 1);
      k16[i] = cached16(keys + (long long)at * DIM + part * 8);
      v16[i] = cached16(values + (long long)at * DIM + part * 8);
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const bool real = base + (i * WARPS + warp) * 2 + half < to;
      float k[8], v[8];
      unpack8(k16[i], k);
      unpack8(v16[i], v);
#pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        float dot = 0.f;
#pragma unroll
        for (int d = 0; d < 8; ++d) dot = fmaf(q[g][d], k[d], dot);
#pragma unroll
        for (int o = 8; o; o >>= 1) dot += __shfl_xor_sync(~0u, dot, o);
        if (!real) dot = -1e30f;
        const float top = fmaxf(m[g], dot), keep = __expf(m[g] - top), p = real ? __expf(dot - top) : 0.f;
        m[g] = top;
        l[g] = l[g] * keep + p;
#pragma unroll
        for (int d = 0; d < 8; ++d) acc[g][d] = fmaf(p, v[d], acc[g][d] * keep);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {  // the two halves of the warp become one
    const float other = __shfl_xor_sync(~0u, m[g], 16), top = fmaxf(m[g], other), keep = __expf(m[g] - top);
    l[g] *= keep;
    l[g] += __shfl_xor_sync(~0u, l[g], 16);
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      acc[g][d] *= keep;
      acc[g][d] += __shfl_xor_sync(~0u, acc[g][d], 16);
      if (half == 0) sh.acc[warp][g][part * 8 + d] = acc[g][d];
    }
    if (lane == 0) { sh.m[warp][g] = top; sh.l[warp][g] = l[g]; }
  }
  __syncthreads();
}

// A block takes one kv head and one part of the sequence; the last block of a head to finish joins the parts.
// partial: [KV_HEADS][MAX_SPLITS][GROUP][DIM + 2]: weighted sum, running maximum, running mass.
__device__ __forceinline__ void attention(const Step& s, const u16* norm, int layer, Shared& sh) {
  const int at = (int)*s.position, length = at + 1;
  const int most = max(1, min(MAX_SPLITS, (int)gridDim.x / KV_HEADS)), splits = min(most, (length + 31) / 32);
  for (int item = blockIdx.x; item < KV_HEADS * splits; item += gridDim.x) {
    const int kv = item % KV_HEADS, split = item / KV_HEADS;
    const int from = (int)((long long)length * split / splits), to = (int)((long long)length * (split + 1) / splits);
    const long long base = layer * s.layer_stride + (long long)kv * s.slots * DIM;
    u16 *keys = s.keys + base, *values = s.values + base;
    place_qkv(s, norm, kv, at, to == length, keys, values, sh);
    attend_span(keys, values, from, to, sh);
    const int g = threadIdx.x / DIM, d = threadIdx.x % DIM;
    float* mine = s.partial + ((long long)(kv * MAX_SPLITS + split) * GROUP + g) * (DIM + 2);
    if (g < GROUP) {
      float top = -1e30f, sum = 0.f, mass = 0.f;
      for (int k = 0; k < WARPS; ++k) top = fmaxf(top, sh.m[k][g]);
      for (int k = 0; k < WARPS; ++k) {
        const float keep = __expf(sh.m[k][g] - top);
        sum = fmaf(keep, sh.acc[k][g][d], sum);
        mass = fmaf(keep, sh.l[k][g], mass);
      }
      mine[d] = sum;
      if (d == 0) { mine[DIM] = top; mine[DIM + 1] = mass; }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) sh.last = atomicInc(s.arrived + kv, splits - 1) == splits - 1;
    __syncthreads();
    if (sh.last && g < GROUP) {
      __threadfence();
      const float* all = s.partial + ((long long)kv * MAX_SPLITS * GROUP + g) * (DIM + 2);
      const int stride = GROUP * (DIM + 2);
      float top = -1e30f, sum = 0.f, mass = 0.f;
      for (int k = 0; k < splits; ++k) top = fmaxf(top, fresh(all + k * stride + DIM));
      for (int k = 0; k < splits; ++k) {
        const float keep = __expf(fresh(all + k * stride + DIM) - top);
        sum = fmaf(keep, fresh(all + k * stride + d), sum);
        mass = fmaf(keep, fresh(all + k * stride + DIM + 1), mass);
      }
      s.attended[(kv * GROUP + g) * DIM + d] = sum / mass;
    }
    __syncthreads();
  }
}
