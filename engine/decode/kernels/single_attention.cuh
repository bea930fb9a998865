// Flash-decoding of one query per head. The KV cache is split over heads and over the sequence. Part of single.cu.

// A block takes Q query heads of one KV head; half a warp takes one position at a time. In a short context each query
// head has its own blocks (Q = 1), and all their loads can be in flight before the query arrives. In a long context,
// cache traffic dominates, so the query heads of a group share a block (Q = GROUP).
constexpr int HALF_WARPS = WARPS * 2, PARTIAL_STRIDE = DIM + 2;
template <int Q> __host__ __device__ constexpr int loads() { return Q == 1 ? 4 : 2; }           // in flight
template <int Q> __host__ __device__ constexpr int chunk() { return HALF_WARPS * loads<Q>(); }  // positions at a time
constexpr int SHORT_CONTEXT = BLOCKS / HEADS * chunk<1>();  // below this, Q = 1

// A block's work item, the same in each layer: Q heads from `head` on, positions [from, to). `at`: the new position.
struct Split { int head, index, count, from, to, at; };
template <int Q> __host__ __device__ constexpr int max_splits() {
  return BLOCKS / (HEADS / Q) < 1 ? 1 : BLOCKS / (HEADS / Q) < MAX_SPLITS ? BLOCKS / (HEADS / Q) : MAX_SPLITS;
}
template <int Q>
__device__ __forceinline__ int splits_of(int at) {
  // A head's split 0 waits for the other splits, so each split needs its own block.
  static_assert(max_splits<Q>() == 1 || HEADS / Q * max_splits<Q>() <= BLOCKS, "a block would wait for itself");
  return min(max_splits<Q>(), ceil_div(at + 1, chunk<Q>()));
}
template <int Q>
__device__ __forceinline__ Split split_of(int item, int splits, int at) {
  const int split = item / (HEADS / Q), length = at + 1;
  return {item % (HEADS / Q) * Q, split, splits, length * split / splits, length * (split + 1) / splits, at};
}

// Data that can be loaded before the query arrives: norm and rotation of the warp's vector, where it is kept if it is a
// query that is, and the split's first positions.
template <int Q> struct CachedKv { uint4 k[loads<Q>()], v[loads<Q>()]; };
struct Prologue { uint2 norm; Rope rope; u16* kept; };
template <int Q>
__device__ __forceinline__ Prologue load_prologue(const SingleArgs& s, const LayerWeights& w, const Split& a) {
  const int warp = threadIdx.x >> 5;
  Prologue p = {};
  if (warp > Q) return p;
  p.norm = load_norm(w.qk_norm, warp < Q ? a.head + warp : HEADS + a.head / GROUP);
  p.rope = load_rope(s.cos, s.sin, a.at);
  if (warp < Q && a.index == 0) p.kept = kept_query(w.queries, w.query_heads, a.head + warp, 0, 1, s.max_seq_len, a.at);
  return p;
}
__device__ __forceinline__ int position_of(int base, int i) {
  return base + (i * WARPS + (threadIdx.x >> 5)) * 2 + (threadIdx.x >> 4 & 1);
}
template <int Q>
__device__ __forceinline__ void load_kv(CachedKv<Q>& c, const u16* keys, const u16* values, int base, int end) {
  const int sublane = threadIdx.x & 15;
#pragma unroll
  for (int i = 0; i < loads<Q>(); ++i) {
    const int at = position_of(base, i);
    const bool cached = at < end;
    c.k[i] = cached ? load_cg16(keys + (long long)at * DIM + sublane * VEC) : make_uint4(0, 0, 0, 0);
    c.v[i] = cached ? load_cg16(values + (long long)at * DIM + sublane * VEC) : make_uint4(0, 0, 0, 0);
  }
}

// Writes rotated and scaled queries to shared memory. Splits with the new position also write its key and value there,
// and the block with the group's first query head writes them to the cache.
template <int Q>
__device__ __forceinline__ void place_qkv(const SingleArgs& s, const Split& a, const Prologue& p, u16* keys,
                                          u16* values, u32 epoch, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp < Q) {
    const float4 q = norm_rope(receive(s, s.qkv + (a.head + warp) * DIM + lane * 4, epoch), p.norm, p.rope);
    const float scale = 0.08838834764831845f;  // 128 ** -0.5
    *(float4*)(&sh.q[warp][lane * 4]) = make_float4(q.x * scale, q.y * scale, q.z * scale, q.w * scale);
    if (p.kept) store4(p.kept, pack4(q));
  } else if (warp <= Q + 1 && a.to > a.at) {
    const bool is_key = warp == Q;
    float4 v = receive(s, s.qkv + Q_SIZE + (is_key ? 0 : KV_SIZE) + a.head / GROUP * DIM + lane * 4, epoch);
    if (is_key) v = norm_rope(v, p.norm, p.rope);
    place_new(pack4(v), is_key ? sh.key : sh.value, is_key ? keys : values, a.at, a.head % GROUP == 0);
  }
  __syncthreads();
}

// Online softmax over a split. Half a warp takes one position, 8 dimensions per lane. `next` has the first positions.
template <int Q>
__device__ __forceinline__ void attend_split(const Split& a, CachedKv<Q>& next, const u16* keys, const u16* values,
                                               Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, sublane = lane & 15, half = lane >> 4;
  float q[Q][8], o[Q][8], m[Q], l[Q];
#pragma unroll
  for (int g = 0; g < Q; ++g) {
    m[g] = -1e30f; l[g] = 0.f;
#pragma unroll
    for (int d = 0; d < 8; ++d) { q[g][d] = sh.q[g][sublane * 8 + d]; o[g][d] = 0.f; }
  }
#pragma unroll 1
  for (int base = a.from; base < a.to; base += chunk<Q>()) {
    CachedKv<Q> now = next;
    load_kv<Q>(next, keys, values, base + chunk<Q>(), min(a.to, a.at));
    float dot[Q][loads<Q>()];
#pragma unroll
    for (int i = 0; i < loads<Q>(); ++i) {
      const int at = position_of(base, i);
      if (at == a.at) { now.k[i] = ((const uint4*)sh.key)[sublane]; now.v[i] = ((const uint4*)sh.value)[sublane]; }
      float k[8];
      unpack8(now.k[i], k);
#pragma unroll
      for (int g = 0; g < Q; ++g) {
        float sum = 0.f;
#pragma unroll
        for (int d = 0; d < 8; ++d) sum = fmaf(q[g][d], k[d], sum);
#pragma unroll
        for (int lanes = 8; lanes; lanes >>= 1) sum += __shfl_xor_sync(~0u, sum, lanes);
        dot[g][i] = at < a.to ? sum : -1e30f;
      }
    }
#pragma unroll
    for (int g = 0; g < Q; ++g) {
      float top = m[g];
#pragma unroll
      for (int i = 0; i < loads<Q>(); ++i) top = fmaxf(top, dot[g][i]);
      const float keep = __expf(m[g] - top);
      m[g] = top;
      l[g] *= keep;
#pragma unroll
      for (int d = 0; d < 8; ++d) o[g][d] *= keep;
#pragma unroll
      for (int i = 0; i < loads<Q>(); ++i) {
        const float p = position_of(base, i) < a.to ? __expf(dot[g][i] - top) : 0.f;
        float v[8];
        unpack8(now.v[i], v);
        l[g] += p;
#pragma unroll
        for (int d = 0; d < 8; ++d) o[g][d] = fmaf(p, v[d], o[g][d]);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < Q; ++g) {  // combine the warp's halves
    const float other = __shfl_xor_sync(~0u, m[g], 16), top = fmaxf(m[g], other), keep = __expf(m[g] - top);
    l[g] *= keep;
    l[g] += __shfl_xor_sync(~0u, l[g], 16);
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      o[g][d] *= keep;
      o[g][d] += __shfl_xor_sync(~0u, o[g][d], 16);
      if (half == 0) sh.o[warp][g][sublane * 8 + d] = o[g][d];
    }
    if (lane == 0) { sh.m[warp][g] = top; sh.l[warp][g] = l[g]; }
  }
  __syncthreads();
}

// Receives O (dimensions d and d + 1) and (m, l) of N partial results from split k on, with all loads in flight at
// once. Indices past the last split are clamped.
template <int N>
__device__ __forceinline__ void receive_splits(const SingleArgs& s, const u64* partial, int d, int k, int splits,
                                               u32 epoch, float2* o, float2* ml) {
  uint4 a[N], b[N];
  Wait w;
  bool all;
  do {
    all = true;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const u64* from = partial + min(k + j, splits - 1) * PARTIAL_STRIDE;
      a[j] = poll(from + d);
      b[j] = poll(from + DIM);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) all &= a[j].y == epoch && a[j].w == epoch && b[j].y == epoch && b[j].w == epoch;
  } while (!all && !give_up(s, w));
#pragma unroll
  for (int j = 0; j < N; ++j) {
    o[j] = make_float2(__uint_as_float(a[j].x), __uint_as_float(a[j].z));
    ml[j] = make_float2(__uint_as_float(b[j].x), __uint_as_float(b[j].z));
  }
}

// Combines the block's warps, then a head's splits: split 0 receives the others' partial results and publishes the
// output. partial: [HEADS][MAX_SPLITS][DIM + 2], O, m, l. Two dimensions per thread.
template <int Q>
__device__ __forceinline__ void combine(const SingleArgs& s, const Split& a, u32 epoch, Shared& sh) {
  constexpr int AT_ONCE = 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < Q * DIM / 2; i += THREADS) {
    const int g = i / (DIM / 2), d = i % (DIM / 2) * 2;
    float m = -1e30f, l = 0.f;
    float2 o = make_float2(0.f, 0.f);
    for (int k = 0; k < WARPS; ++k) m = fmaxf(m, sh.m[k][g]);
    for (int k = 0; k < WARPS; ++k) {
      const float keep = __expf(sh.m[k][g] - m);
      const float2 other = *(const float2*)(&sh.o[k][g][d]);
      o = make_float2(fmaf(keep, other.x, o.x), fmaf(keep, other.y, o.y));
      l = fmaf(keep, sh.l[k][g], l);
    }
    u64* partial = s.partial + ((a.head + g) * MAX_SPLITS + a.index) * PARTIAL_STRIDE;
    if (a.index) {
      publish(partial + d, o.x, epoch);
      publish(partial + d + 1, o.y, epoch);
      if (d == 0) { publish(partial + DIM, m, epoch); publish(partial + DIM + 1, l, epoch); }
      continue;
    }
#pragma unroll 1
    for (int k = 1; k < a.count; k += AT_ONCE) {
      float2 others[AT_ONCE], ml[AT_ONCE];
      receive_splits<AT_ONCE>(s, partial, d, k, a.count, epoch, others, ml);
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        if (k + j >= a.count) continue;
        const float both = fmaxf(m, ml[j].x), keep = __expf(m - both), add = __expf(ml[j].x - both);
        o = make_float2(keep * o.x + add * others[j].x, keep * o.y + add * others[j].y);
        l = keep * l + add * ml[j].y;
        m = both;
      }
    }
    u32* to = s.attended + (a.head + g) * DIM + d;
    publish(to, ll_word_bf16(o.x / l, epoch + 1));
    publish(to + 1, ll_word_bf16(o.y / l, epoch + 1));
  }
  __syncthreads();
}

// Receives qkv of `epoch` and publishes the heads' outputs in the next epoch. A block takes several items only if there
// are fewer blocks than heads; then nothing is split (splits_of).
template <int Q>
__device__ __forceinline__ void attend_heads(const SingleArgs& s, const LayerWeights& w, int at, u16* keys, u16* values,
                                             u32 epoch, Shared& sh) {
  const int splits = splits_of<Q>(at);
#pragma unroll 1
  for (int item = blockIdx.x; item < HEADS / Q * splits; item += BLOCKS) {
    const Split a = split_of<Q>(item, splits, at);
    const long long start = (long long)(a.head / GROUP) * s.max_seq_len * DIM;
    u16 *k = keys + start, *v = values + start;
    CachedKv<Q> first;
    load_kv<Q>(first, k, v, a.from, min(a.to, at));
    const Prologue prologue = load_prologue<Q>(s, w, a);
    place_qkv<Q>(s, a, prologue, k, v, epoch, sh);
    attend_split<Q>(a, first, k, v, sh);
    combine<Q>(s, a, epoch, sh);
  }
}
__device__ __forceinline__ void attention(const SingleArgs& s, const LayerWeights& w, int at, u16* keys, u16* values,
                                          u32 epoch, Shared& sh) {
  if (at < SHORT_CONTEXT) attend_heads<1>(s, w, at, keys, values, epoch, sh);
  else attend_heads<GROUP>(s, w, at, keys, values, epoch, sh);
}
