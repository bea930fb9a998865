// One query against the filled part of the cache, all heads, split over the sequence. Part of decode.cu.

constexpr int DEPTH = 2, REACH = WARPS * 2 * DEPTH;  // half a warp takes a position; a block takes REACH at a time
constexpr int STRETCH = 2 * REACH;                   // positions that are worth another block

// What a block does in this step's attentions, the same in each layer: one kv head, positions [from, to).
struct Stretch {
  int kv, split, splits, from, to, at;  // at: the position that is new
  uint2 cos, sin;                       // of it, for dimensions 4 * lane .. 4 * lane + 3
};
__device__ __forceinline__ Stretch stretch_of(const Step& s, int item) {
  const int lane = threadIdx.x & 31, at = (int)*s.position, length = at + 1;
  const int limit = max(1, min(MAX_SPLITS, BLOCKS / KV_HEADS)), splits = min(limit, most(length, STRETCH));
  const int split = item / KV_HEADS;
  return {item % KV_HEADS, split, splits, (int)((long long)length * split / splits),
          split < splits ? (int)((long long)length * (split + 1) / splits) : 0, at,
          *(const uint2*)(s.cos + (long long)at * DIM + lane * 4), *(const uint2*)(s.sin + (long long)at * DIM + lane * 4)};
}

// What can be loaded before the new query is there: the norm's weights, and the first positions of the stretch.
struct Cached { uint4 k[DEPTH], v[DEPTH]; };
__device__ __forceinline__ uint2 norm_of(const u16* norm, int kv) {
#if HAS_QK_NORM
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = warp < GROUP ? kv * GROUP + warp : HEADS + kv;
  if (warp <= GROUP) return *(const uint2*)(norm + head * DIM + lane * 4);
#endif
  return make_uint2(0, 0);
}
__device__ __forceinline__ int position_of(int base, int i) {
  return base + (i * WARPS + (threadIdx.x >> 5)) * 2 + (threadIdx.x >> 4 & 1);
}
__device__ __forceinline__ void load_cached(Cached& c, const u16* keys, const u16* values, int base, int end) {
  const int part = threadIdx.x & 15;
#pragma unroll
  for (int i = 0; i < DEPTH; ++i) {
    const int at = position_of(base, i);
    const bool real = at < end;
    c.k[i] = real ? cached16(keys + (long long)at * DIM + part * LANE) : make_uint4(0, 0, 0, 0);
    c.v[i] = real ? cached16(values + (long long)at * DIM + part * LANE) : make_uint4(0, 0, 0, 0);
  }
}

// Per-head norm and rotation of one vector of 128, four values a lane.
__device__ __forceinline__ float4 norm_rotate(const Stretch& a, float4 v, uint2 w) {
  const int lane = threadIdx.x & 31;
#if HAS_QK_NORM
  const float scale = rsqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) * (1.f / DIM) + EPS);
  v = make_float4(v.x * scale * low(w.x), v.y * scale * high(w.x), v.z * scale * low(w.y), v.w * scale * high(w.y));
#endif
  const float sign = lane < 16 ? -1.f : 1.f;
  const float4 o = make_float4(sign * __shfl_xor_sync(~0u, v.x, 16), sign * __shfl_xor_sync(~0u, v.y, 16),
                               sign * __shfl_xor_sync(~0u, v.z, 16), sign * __shfl_xor_sync(~0u, v.w, 16));
  return make_float4(v.x * low(a.cos.x) + o.x * low(a.sin.x), v.y * high(a.cos.x) + o.y * high(a.sin.x),
                     v.z * low(a.cos.y) + o.z * low(a.sin.y), v.w * high(a.cos.y) + o.w * high(a.sin.y));
}

__device__ __forceinline__ float4 receive4(const u64* from, u32 round) {
  float2 v[2];
  receive<2>(from, 2, round, v);
  return make_float4(v[0].x, v[0].y, v[1].x, v[1].y);
}
// Puts the rotated queries of the kv head into shared memory, scaled, and the new key and value there too; whoever
// takes the last positions also writes those into the cache.
__device__ __forceinline__ void place_qkv(const Step& s, const Stretch& a, uint2 norm, u16* keys, u16* values, u32 round,
                                          Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const bool owner = a.to > a.at;
  if (warp < GROUP) {
    const float4 q = norm_rotate(a, receive4(s.qkv + (a.kv * GROUP + warp) * DIM + lane * 4, round), norm);
    const float scale = 0.08838834764831845f;  // 128 ** -0.5
    *(float4*)(&sh.q[warp][lane * 4]) = make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale);
  } else if (warp <= GROUP + 1 && owner) {
    const bool is_key = warp == GROUP;
    float4 v = receive4(s.qkv + Q_ROWS + (is_key ? 0 : KV_ROWS) + a.kv * DIM + lane * 4, round);
    if (is_key) v = norm_rotate(a, v, norm);
    const uint2 packed = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
    *(uint2*)((is_key ? sh.key : sh.value) + lane * 2) = packed;
    *(uint2*)((is_key ? keys : values) + (long long)a.at * DIM + lane * 4) = packed;
  }
  __syncthreads();
}

// Half a warp takes one position: 16 lanes of 8 dimensions each. `front` holds the first positions.
__device__ __forceinline__ void attend_stretch(const Stretch& a, Cached& front, const u16* keys, const u16* values,
                                               Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = lane & 15, half = lane >> 4;
  float q[GROUP][8], acc[GROUP][8], m[GROUP], l[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    m[g] = -1e30f; l[g] = 0.f;
#pragma unroll
    for (int d = 0; d < 8; ++d) { q[g][d] = sh.q[g][part * 8 + d]; acc[g][d] = 0.f; }
  }
  for (int base = a.from; base < a.to; base += REACH) {
    Cached now = front;
    load_cached(front, keys, values, base + REACH, min(a.to, a.at));
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const int at = position_of(base, i);
      const bool real = at < a.to;
      if (at == a.at) { now.k[i] = ((const uint4*)sh.key)[part]; now.v[i] = ((const uint4*)sh.value)[part]; }
      float k[8], v[8];
      unpack8(now.k[i], k);
      unpack8(now.v[i], v);
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

// The block's warps become one, and then the blocks of a head: those of later stretches hand theirs to the first.
// partial: [KV_HEADS][MAX_SPLITS][GROUP][2 * DIM + 2]: weighted sums, each with the running maximum beside it, and the
// running mass at the end, twice.
__device__ __forceinline__ void join(const Step& s, const Stretch& a, u32 round, Shared& sh) {
  constexpr int ROOM = 2 * DIM + 2, STRIDE = GROUP * ROOM;
  for (int i = threadIdx.x; i < GROUP * DIM; i += THREADS) {
    const int g = i / DIM, d = i % DIM;
    float top = -1e30f, sum = 0.f, mass = 0.f;
    for (int k = 0; k < WARPS; ++k) top = fmaxf(top, sh.m[k][g]);
    for (int k = 0; k < WARPS; ++k) {
      const float keep = __expf(sh.m[k][g] - top);
      sum = fmaf(keep, sh.acc[k][g][d], sum);
      mass = fmaf(keep, sh.l[k][g], mass);
    }
    u64* part = s.partial + ((long long)a.kv * MAX_SPLITS + a.split) * STRIDE + g * ROOM;
    if (a.split) {
      hand(part + 2 * d, sum, round);
      hand(part + 2 * d + 1, top, round);
      if (d < 2) hand(part + 2 * DIM + d, mass, round);
      continue;
    }
    for (int k = 1; k < a.splits; k += 4) {  // four at a time; past the end the last one again, without weight
      float2 value[4], weight[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const u64* other = part + (long long)min(k + j, a.splits - 1) * STRIDE;
        receive<1>(other + 2 * d, 0, round, value + j);
        receive<1>(other + 2 * DIM, 0, round, weight + j);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (k + j >= a.splits) continue;
        const float both = fmaxf(top, value[j].y), keep = __expf(top - both), add = __expf(value[j].y - both);
        sum = keep * sum + add * value[j].x;
        mass = keep * mass + add * weight[j].x;
        top = both;
      }
    }
    hand(s.attended + a.kv * GROUP * DIM + i, sum / mass, round + 1);
  }
  __syncthreads();
}

// All of it: receives `round` and hands the heads on as the one after it.
__device__ __forceinline__ void attention(const Step& s, const u16* norm, const Stretch& own, u16* keys, u16* values,
                                          u32 round, Shared& sh) {
  const int items = KV_HEADS * own.splits;
  for (int item = blockIdx.x; item < items; item += BLOCKS) {
    const Stretch a = item == blockIdx.x ? own : stretch_of(s, item);  // another on a GPU of few multiprocessors only
    u16 *k = keys + (long long)a.kv * s.slots * DIM, *v = values + (long long)a.kv * s.slots * DIM;
    Cached front;
    load_cached(front, k, v, a.from, min(a.to, a.at));
    const uint2 weights = norm_of(norm, a.kv);
    wait(s, round);
    place_qkv(s, a, weights, k, v, round, sh);
    attend_stretch(a, front, k, v, sh);
    join(s, a, round, sh);
  }
}
