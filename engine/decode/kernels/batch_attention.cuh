// One query a row against the filled part of its cache: which block takes what of it, and how it comes together again.
// Part of batch.cu.

// Positions of a part of a row, a block's work. Its length alone decides: never more than MOST_PARTS parts.
__device__ __forceinline__ int part_size(int at) {
  int size = PART;
  while (at / size >= MOST_PARTS) size *= 2;
  return size;
}

struct Parts {  // a lane knows rows `lane` and `lane + 32`: their new positions, and parts up to and with them
  int at[2], until[2], total;
};
__device__ __forceinline__ Parts count_parts(const long long* position, int rows) {
  const int lane = threadIdx.x & 31;
  Parts p;
  int before = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) p.at[i] = lane + 32 * i < rows ? (int)position[lane + 32 * i] : -1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int sum = p.at[i] < 0 ? 0 : p.at[i] / part_size(p.at[i]) + 1;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    p.until[i] = before + sum;
    before = __shfl_sync(~0u, p.until[i], 31);
  }
  p.total = before;
  return p;
}

__device__ __forceinline__ int of_row(const int (&value)[2], int row) {
  const int first = __shfl_sync(~0u, value[0], row & 31), second = __shfl_sync(~0u, value[1], row & 31);
  return row < 32 ? first : second;
}
__device__ __forceinline__ Stretch stretch_of(const Parts& p, int item) {
  const int unit = item / KV_HEADS;
  Stretch a;
  a.row = __popc(__ballot_sync(~0u, p.until[0] <= unit)) + __popc(__ballot_sync(~0u, p.until[1] <= unit));
  a.kv = item % KV_HEADS;
  a.at = of_row(p.at, a.row);
  const int size = part_size(a.at);
  a.parts = a.at / size + 1;
  a.part = unit - of_row(p.until, a.row) + a.parts;
  a.from = a.part * size;
  a.to = min(a.from + size, a.at + 1);
  return a;
}

__device__ __forceinline__ void clear_queries(Crew& crew) {
  for (int i = threadIdx.x; i < COLUMNS * Q_PITCH; i += CREW * 32) crew.q[i / Q_PITCH][i % Q_PITCH] = 0;
}

// Per-head norm and rotation of one vector of 128, four values a lane, rounded to bf16.
__device__ __forceinline__ uint2 norm_rotate(uint2 raw, uint2 w, uint2 cos, uint2 sin) {
  const int lane = threadIdx.x & 31;
  float4 v = make_float4(low(raw.x), high(raw.x), low(raw.y), high(raw.y));
#if HAS_QK_NORM
  const float scale = rsqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) * (1.f / DIM) + EPS);
  v = make_float4(v.x * scale * low(w.x), v.y * scale * high(w.x), v.z * scale * low(w.y), v.w * scale * high(w.y));
#endif
  const float sign = lane < 16 ? -1.f : 1.f;
  const float4 o = make_float4(sign * __shfl_xor_sync(~0u, v.x, 16), sign * __shfl_xor_sync(~0u, v.y, 16),
                               sign * __shfl_xor_sync(~0u, v.z, 16), sign * __shfl_xor_sync(~0u, v.w, 16));
  return make_uint2(pack(v.x * low(cos.x) + o.x * low(sin.x), v.y * high(cos.x) + o.y * high(sin.x)),
                    pack(v.z * low(cos.y) + o.z * low(sin.y), v.w * high(cos.y) + o.w * high(sin.y)));
}

// Puts the kv head's rotated queries into shared memory. Whoever takes the last positions puts the new key and value
// there too, and into the cache. A warp takes a vector or two of them.
__device__ __forceinline__ void place_qkv(const Stretch& a, const u16* qkv, const u16* norm, const u16* cos,
                                          const u16* sin, u16* keys, u16* values, Crew& crew) {
  constexpr int VECTORS = GROUP + 2, TURNS = (VECTORS + CREW - 1) / CREW;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, wanted = a.to > a.at ? VECTORS : GROUP;
  const long long rotary = (long long)a.at * DIM + lane * 4;
  const uint2 c = *(const uint2*)(cos + rotary), s = *(const uint2*)(sin + rotary);
  uint2 raw[TURNS], weight[TURNS];
#pragma unroll
  for (int j = 0; j < TURNS; ++j) {
    const int i = min(warp + j * CREW, VECTORS - 1);
    const int at = (i < GROUP ? a.kv * GROUP + i : HEADS + (i - GROUP) * KV_HEADS + a.kv) * DIM + lane * 4;
    raw[j] = *(const uint2*)(qkv + at);
    weight[j] = HAS_QK_NORM && i <= GROUP ? *(const uint2*)(norm + at) : make_uint2(0, 0);
  }
  __syncthreads();  // no warp reads the last item's any more
#pragma unroll
  for (int j = 0; j < TURNS; ++j) {
    const int i = warp + j * CREW;
    if (i >= wanted) continue;
    const uint2 v = i <= GROUP ? norm_rotate(raw[j], weight[j], c, s) : raw[j];
    *(uint2*)((i < GROUP ? crew.q[i] : i == GROUP ? crew.key : crew.value) + lane * 4) = v;
    if (i >= GROUP) *(uint2*)((i == GROUP ? keys : values) + rotary) = v;
  }
  __syncthreads();
}

// A warp's first position of the stretch; its other tiles are STRIDE positions apart.
constexpr int STRIDE = CREW * TILE;
__device__ __forceinline__ int first_of(const Stretch& a) { return a.from + (int)(threadIdx.x >> 5) * TILE; }

// The warp's share of the stretch; `tile` holds the first of it.
__device__ __forceinline__ Sums attend_stretch(const Stretch& a, Tile& tile, const u16* keys, const u16* values,
                                               const Crew& crew) {
  Sums s = {{-1e30f, -1e30f}};
#pragma unroll 1
  for (int base = first_of(a); base < a.to; base += STRIDE) {
    if (base + TILE > a.at) insert_new(tile, a, base, crew);
    float c[4];
    score(c, tile, crew);
    load_keys(tile, keys, a, base + STRIDE);
    weigh(s, c, tile, a, base);
    load_values(tile, values, a, base + STRIDE);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) s.l[i] = sum_of_column(s.l[i]);
  return s;
}

// Of one query, a warp's: four dimensions a lane.
struct Whole { float4 sum; float top, mass; };
__device__ __forceinline__ void add(Whole& w, float f, float4 v) {
  w.sum.x = fmaf(f, v.x, w.sum.x); w.sum.y = fmaf(f, v.y, w.sum.y);
  w.sum.z = fmaf(f, v.z, w.sum.z); w.sum.w = fmaf(f, v.w, w.sum.w);
}

// The warps' shares become one; warp q has query q of it.
__device__ __forceinline__ Whole join_warps(const Sums& s, Crew& crew) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = t * 2 + i;
    if (query >= GROUP) continue;
    float* to = crew.sums[warp][query] + g * 8;
#pragma unroll
    for (int m = 0; m < 8; m += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = i + 2 * h;
        *(float4*)(to + h * 64 + m) = make_float4(s.acc[m][k], s.acc[m + 1][k], s.acc[m + 2][k], s.acc[m + 3][k]);
      }
    }
    if (g == 0) crew.marks[warp][query] = make_float2(s.m[i], s.l[i]);
  }
  __syncthreads();
  Whole w = {{0.f, 0.f, 0.f, 0.f}, -1e30f, 0.f};
  if (warp >= GROUP) return w;
#pragma unroll
  for (int k = 0; k < CREW; ++k) w.top = fmaxf(w.top, crew.marks[k][warp].x);
#pragma unroll
  for (int k = 0; k < CREW; ++k) {
    const float2 mark = crew.marks[k][warp];
    const float f = exp2f(mark.x - w.top);
    w.mass = fmaf(f, mark.y, w.mass);
    add(w, f, *(const float4*)(crew.sums[k][warp] + lane * 4));
  }
  return w;
}

// attended: [GROUP][DIM].
__device__ __forceinline__ void write_whole(const Whole& w, u16* attended) {
  const float f = 1.f / w.mass;
  *(uint2*)(attended + threadIdx.x * 4) = make_uint2(pack(w.sum.x * f, w.sum.y * f), pack(w.sum.z * f, w.sum.w * f));
}

// Where a kv head's parts meet. sums: [parts][GROUP][DIM]; marks: [GROUP][MOST_PARTS], maximum and mass.
struct Meeting { float* sums; float2* marks; u32* arrived; };

__device__ __forceinline__ void write_part(const Stretch& a, const Whole& w, const Meeting& at) {
  *(float4*)(at.sums + a.part * (GROUP * DIM) + threadIdx.x * 4) = w.sum;
  if ((threadIdx.x & 31) == 0) at.marks[(threadIdx.x >> 5) * MOST_PARTS + a.part] = make_float2(w.top, w.mass);
}

// Whether this block is the last of a head's to come here; what the others wrote before is then there to be read.
__device__ __forceinline__ bool last_to_arrive(const Meeting& at, int parts, Crew& crew) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    crew.last = atomicInc(at.arrived, parts - 1) == parts - 1;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __syncthreads();
  return crew.last;
}

// The last block of a head joins its parts in their order.
__device__ __forceinline__ Whole join_parts(const Stretch& a, const Meeting& at) {
  const int lane = threadIdx.x & 31;
  const float* mark = (const float*)(at.marks + (threadIdx.x >> 5) * MOST_PARTS + lane);
  const float m = lane < a.parts ? load_cg(mark) : -1e30f, l = lane < a.parts ? load_cg(mark + 1) : 0.f;
  Whole w = {{0.f, 0.f, 0.f, 0.f}, m, 0.f};
#pragma unroll
  for (int o = 16; o; o >>= 1) w.top = fmaxf(w.top, __shfl_xor_sync(~0u, w.top, o));
  const float keep = exp2f(m - w.top);
  w.mass = warp_sum(keep * l);
#pragma unroll 4
  for (int k = 0; k < a.parts; ++k)
    add(w, __shfl_sync(~0u, keep, k), load_cg4(at.sums + k * (GROUP * DIM) + threadIdx.x * 4));
  return w;
}
