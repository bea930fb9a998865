// One query a head against the filled part of the cache, split over heads and over the sequence. Part of single.cu.

// A block takes Q heads of one kv head, and half a warp a position at a time. Short contexts are split over all heads:
// a block's positions are then few enough to be under way before the query is there. In long ones the cache's bytes
// count: the heads of a group share them.
constexpr int HALVES = WARPS * 2, PART_ROOM = DIM + 2;
template <int Q> __host__ __device__ constexpr int depth() { return Q == 1 ? 4 : 2; }       // loads under way
template <int Q> __host__ __device__ constexpr int reach() { return HALVES * depth<Q>(); }  // positions at a time
constexpr int SHORT = BLOCKS / HEADS * reach<1>();  // the longest that is split over all heads

// Part of a step's attentions, the same in each layer: heads from `head` on, positions [from, to), `at` the new one.
struct Stretch { int head, split, splits, from, to, at; };
template <int Q>
__device__ __forceinline__ int splits_of(int at) {
  return max(1, min(min(MAX_SPLITS, BLOCKS / (HEADS / Q)), most(at + 1, reach<Q>())));
}
template <int Q>
__device__ __forceinline__ Stretch stretch_of(int item, int splits, int at) {
  const int split = item / (HEADS / Q), length = at + 1;
  return {item % (HEADS / Q) * Q, split, splits, length * split / splits, length * (split + 1) / splits, at};
}

// What can be loaded before the new query is there: the norm's weights, the rotation of dimensions 4 * lane to
// 4 * lane + 3, and the first positions of the stretch.
template <int Q> struct Cached { uint4 k[depth<Q>()], v[depth<Q>()]; };
struct Turn { uint2 norm, cos, sin; };
template <int Q>
__device__ __forceinline__ Turn turn_of(const SingleArgs& s, const u16* norm, int head, int at) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  Turn t = {};
  if (warp <= Q) {
#if HAS_QK_NORM
    t.norm = *(const uint2*)(norm + (warp < Q ? head + warp : HEADS + head / GROUP) * DIM + lane * 4);
#endif
    t.cos = *(const uint2*)(s.cos + (long long)at * DIM + lane * 4);
    t.sin = *(const uint2*)(s.sin + (long long)at * DIM + lane * 4);
  }
  return t;
}
__device__ __forceinline__ int position_of(int base, int i) {
  return base + (i * WARPS + (threadIdx.x >> 5)) * 2 + (threadIdx.x >> 4 & 1);
}
template <int Q>
__device__ __forceinline__ void load_cached(Cached<Q>& c, const u16* keys, const u16* values, int base, int end) {
  const int part = threadIdx.x & 15;
#pragma unroll
  for (int i = 0; i < depth<Q>(); ++i) {
    const int at = position_of(base, i);
    const bool real = at < end;
    c.k[i] = real ? cached16(keys + (long long)at * DIM + part * LANE) : make_uint4(0, 0, 0, 0);
    c.v[i] = real ? cached16(values + (long long)at * DIM + part * LANE) : make_uint4(0, 0, 0, 0);
  }
}

// Per-head norm and rotation of one vector of 128, four values a lane.
__device__ __forceinline__ float4 norm_rotate(float4 v, const Turn& t) {
  const int lane = threadIdx.x & 31;
#if HAS_QK_NORM
  const float scale = rsqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) * (1.f / DIM) + EPS);
  v = make_float4(v.x * scale * low(t.norm.x), v.y * scale * high(t.norm.x), v.z * scale * low(t.norm.y),
                  v.w * scale * high(t.norm.y));
#endif
  const float sign = lane < 16 ? -1.f : 1.f;
  const float4 o = make_float4(sign * __shfl_xor_sync(~0u, v.x, 16), sign * __shfl_xor_sync(~0u, v.y, 16),
                               sign * __shfl_xor_sync(~0u, v.z, 16), sign * __shfl_xor_sync(~0u, v.w, 16));
  return make_float4(v.x * low(t.cos.x) + o.x * low(t.sin.x), v.y * high(t.cos.x) + o.y * high(t.sin.x),
                     v.z * low(t.cos.y) + o.z * low(t.sin.y), v.w * high(t.cos.y) + o.w * high(t.sin.y));
}

// Puts the rotated queries into shared memory, scaled, and the new key and value there too. Of the blocks that take the
// last positions, the one of the kv head's first query also writes those into the cache.
template <int Q>
__device__ __forceinline__ void place_qkv(const SingleArgs& s, const Stretch& a, const Turn& turn, u16* keys, u16* values,
                                          u32 round, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp < Q) {
    const float4 q = norm_rotate(receive4(s.qkv + (a.head + warp) * DIM + lane * 4, round), turn);
    const float scale = 0.08838834764831845f;  // 128 ** -0.5
    *(float4*)(&sh.q[warp][lane * 4]) = make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale);
  } else if (warp <= Q + 1 && a.to > a.at) {
    const bool is_key = warp == Q;
    float4 v = receive4(s.qkv + Q_ROWS + (is_key ? 0 : KV_ROWS) + a.head / GROUP * DIM + lane * 4, round);
    if (is_key) v = norm_rotate(v, turn);
    const uint2 packed = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
    *(uint2*)((is_key ? sh.key : sh.value) + lane * 2) = packed;
    if (a.head % GROUP == 0) *(uint2*)((is_key ? keys : values) + (long long)a.at * DIM + lane * 4) = packed;
  }
  __syncthreads();
}

// Half a warp takes one position: 16 lanes of 8 dimensions each. `front` holds the first positions.
template <int Q>
__device__ __forceinline__ void attend_stretch(const Stretch& a, Cached<Q>& front, const u16* keys, const u16* values,
                                               Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = lane & 15, half = lane >> 4;
  float q[Q][8], acc[Q][8], m[Q], l[Q];
#pragma unroll
  for (int g = 0; g < Q; ++g) {
    m[g] = -1e30f; l[g] = 0.f;
#pragma unroll
    for (int d = 0; d < 8; ++d) { q[g][d] = sh.q[g][part * 8 + d]; acc[g][d] = 0.f; }
  }
#pragma unroll 1
  for (int base = a.from; base < a.to; base += reach<Q>()) {
    Cached<Q> now = front;
    load_cached<Q>(front, keys, values, base + reach<Q>(), min(a.to, a.at));
    float dot[Q][depth<Q>()];
#pragma unroll
    for (int i = 0; i < depth<Q>(); ++i) {
      const int at = position_of(base, i);
      if (at == a.at) { now.k[i] = ((const uint4*)sh.key)[part]; now.v[i] = ((const uint4*)sh.value)[part]; }
      float k[8];
      unpack8(now.k[i], k);
#pragma unroll
      for (int g = 0; g < Q; ++g) {
        float sum = 0.f;
#pragma unroll
        for (int d = 0; d < 8; ++d) sum = fmaf(q[g][d], k[d], sum);
#pragma unroll
        for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        dot[g][i] = at < a.to ? sum : -1e30f;
      }
    }
#pragma unroll
    for (int g = 0; g < Q; ++g) {
      float top = m[g];
#pragma unroll
      for (int i = 0; i < depth<Q>(); ++i) top = fmaxf(top, dot[g][i]);
      const float keep = __expf(m[g] - top);
      m[g] = top;
      l[g] *= keep;
#pragma unroll
      for (int d = 0; d < 8; ++d) acc[g][d] *= keep;
#pragma unroll
      for (int i = 0; i < depth<Q>(); ++i) {
        const float p = position_of(base, i) < a.to ? __expf(dot[g][i] - top) : 0.f;
        float v[8];
        unpack8(now.v[i], v);
        l[g] += p;
#pragma unroll
        for (int d = 0; d < 8; ++d) acc[g][d] = fmaf(p, v[d], acc[g][d]);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < Q; ++g) {  // the two halves of the warp become one
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

// Sums and weights of N stretches from the k-th on, all asked for at once; past the last one that one again.
template <int N>
__device__ __forceinline__ void receive_splits(const u64* part, int d, int k, int splits, u32 round, float2* value,
                                               float2* weight) {
  uint4 a[N], b[N];
  bool all;
  do {
    all = true;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const u64* from = part + min(k + j, splits - 1) * PART_ROOM;
      a[j] = look(from + d);
      b[j] = look(from + DIM);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) all &= a[j].y == round && a[j].w == round && b[j].y == round && b[j].w == round;
  } while (!all);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    value[j] = make_float2(__uint_as_float(a[j].x), __uint_as_float(a[j].z));
    weight[j] = make_float2(__uint_as_float(b[j].x), __uint_as_float(b[j].z));
  }
}

// The block's warps become one, and then the blocks of a head: those of later stretches hand theirs to the first.
// partial: [HEADS][MAX_SPLITS][DIM + 2]: weighted sums, running maximum, running mass. Two sums a thread.
template <int Q>
__device__ __forceinline__ void join(const SingleArgs& s, const Stretch& a, u32 round, Shared& sh) {
  constexpr int BATCH = 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < Q * DIM / 2; i += THREADS) {
    const int g = i / (DIM / 2), d = i % (DIM / 2) * 2;
    float top = -1e30f, mass = 0.f;
    float2 sum = make_float2(0.f, 0.f);
    for (int k = 0; k < WARPS; ++k) top = fmaxf(top, sh.m[k][g]);
    for (int k = 0; k < WARPS; ++k) {
      const float keep = __expf(sh.m[k][g] - top);
      const float2 part = *(const float2*)(&sh.acc[k][g][d]);
      sum = make_float2(fmaf(keep, part.x, sum.x), fmaf(keep, part.y, sum.y));
      mass = fmaf(keep, sh.l[k][g], mass);
    }
    u64* part = s.partial + ((a.head + g) * MAX_SPLITS + a.split) * PART_ROOM;
    if (a.split) {
      hand(part + d, sum.x, round);
      hand(part + d + 1, sum.y, round);
      if (d == 0) { hand(part + DIM, top, round); hand(part + DIM + 1, mass, round); }
      continue;
    }
#pragma unroll 1
    for (int k = 1; k < a.splits; k += BATCH) {  // past the last one that one again, without weight
      float2 value[BATCH], weight[BATCH];
      receive_splits<BATCH>(part, d, k, a.splits, round, value, weight);
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        if (k + j >= a.splits) continue;
        const float both = fmaxf(top, weight[j].x), keep = __expf(top - both), add = __expf(weight[j].x - both);
        sum = make_float2(keep * sum.x + add * value[j].x, keep * sum.y + add * value[j].y);
        mass = keep * mass + add * weight[j].y;
        top = both;
      }
    }
    u32* to = s.attended + (a.head + g) * DIM + d;
    hand(to, bf16_word_of(sum.x / mass, round + 1));
    hand(to + 1, bf16_word_of(sum.y / mass, round + 1));
  }
  __syncthreads();
}

// All of it: receives `round` and hands the heads on as the one after it.
template <int Q>
__device__ __forceinline__ void attend_heads(const SingleArgs& s, const u16* norm, int at, u16* keys, u16* values, u32 round,
                                             Shared& sh) {
  const int splits = splits_of<Q>(at);
#pragma unroll 1
  for (int item = blockIdx.x; item < HEADS / Q * splits; item += BLOCKS) {  // more than one on few multiprocessors only
    const Stretch a = stretch_of<Q>(item, splits, at);
    const long long start = (long long)(a.head / GROUP) * s.slots * DIM;
    u16 *k = keys + start, *v = values + start;
    Cached<Q> front;
    load_cached<Q>(front, k, v, a.from, min(a.to, at));
    const Turn turn = turn_of<Q>(s, norm, a.head, at);
    place_qkv<Q>(s, a, turn, k, v, round, sh);
    attend_stretch<Q>(a, front, k, v, sh);
    join<Q>(s, a, round, sh);
  }
}
__device__ __forceinline__ void attention(const SingleArgs& s, const u16* norm, int at, u16* keys, u16* values, u32 round,
                                          Shared& sh) {
  if (at < SHORT) attend_heads<1>(s, norm, at, keys, values, round, sh);
  else attend_heads<GROUP>(s, norm, at, keys, values, round, sh);
}
