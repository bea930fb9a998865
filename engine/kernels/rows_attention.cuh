// One query a row against the filled part of its cache: which warp takes what of it, and how it comes together again.
// Part of rows.cu.

// Positions of a part of a row. Its length alone decides: few where there are few, so that many warps share them; then
// twice as many, since each part costs time of its own; and never more than MOST_PARTS parts.
__device__ __forceinline__ int part_size(int at) {
  int size = at < 4 * SHORTEST ? SHORTEST : 2 * SHORTEST;
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

__device__ __forceinline__ void clear_queries(Hand& hand) {
  for (int i = threadIdx.x & 31; i < COLUMNS * Q_PITCH; i += 32) hand.q[i / Q_PITCH][i % Q_PITCH] = 0;
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
// there too, and into the cache.
__device__ __forceinline__ void place_qkv(const Stretch& a, const u16* qkv, const u16* norm, const u16* cos,
                                          const u16* sin, u16* keys, u16* values, Hand& hand) {
  const int lane = threadIdx.x & 31;
  const bool owner = a.to > a.at;
  const long long rotary = (long long)a.at * DIM + lane * 4;
  const uint2 c = *(const uint2*)(cos + rotary), s = *(const uint2*)(sin + rotary);
  uint2 raw[GROUP + 2], weight[GROUP + 1];
#pragma unroll
  for (int i = 0; i < GROUP + 2; ++i) {
    const int at = (i < GROUP ? a.kv * GROUP + i : HEADS + (i - GROUP) * KV_HEADS + a.kv) * DIM + lane * 4;
    raw[i] = *(const uint2*)(qkv + at);
    if (HAS_QK_NORM && i <= GROUP) weight[i] = *(const uint2*)(norm + at);
  }
  __syncwarp();  // no lane reads the last item's any more
#pragma unroll
  for (int i = 0; i < GROUP; ++i) *(uint2*)(hand.q[i] + lane * 4) = norm_rotate(raw[i], weight[i], c, s);
  if (owner) {
    raw[GROUP] = norm_rotate(raw[GROUP], weight[GROUP], c, s);
    *(uint2*)(hand.key + lane * 4) = *(uint2*)(keys + rotary) = raw[GROUP];
    *(uint2*)(hand.value + lane * 4) = *(uint2*)(values + rotary) = raw[GROUP + 1];
  }
  __syncwarp();
}

// All of the stretch; `tile` holds the first of it.
__device__ __forceinline__ Sums attend_stretch(const Stretch& a, Tile& tile, const u16* keys, const u16* values,
                                               const Hand& hand) {
  Sums s = {{-1e30f, -1e30f}};
#pragma unroll 1
  for (int base = a.from; base < a.to; base += TILE) {
    if (base + TILE > a.at) insert_new(tile, a, base, hand);
    float c[4];
    score(c, tile, hand);
    load_keys(tile, keys, a, base + TILE);
    weigh(s, c, tile, a, base);
    load_values(tile, values, a, base + TILE);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) s.l[i] = sum_of_column(s.l[i]);
  return s;
}

// Where a kv head's parts meet. sums: [parts][GROUP][DIM]; marks: [GROUP][MOST_PARTS][2], maximum and mass.
struct Meeting { float *sums, *marks; u32* arrived; };

__device__ __forceinline__ void write_part(const Stretch& a, const Sums& s, const Meeting& at) {
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = t * 2 + i;
    if (query >= GROUP) continue;
    float* to = at.sums + (a.part * GROUP + query) * DIM + g * 8;
#pragma unroll
    for (int m = 0; m < 8; m += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = i + 2 * h;
        *(float4*)(to + h * 64 + m) = make_float4(s.acc[m][k], s.acc[m + 1][k], s.acc[m + 2][k], s.acc[m + 3][k]);
      }
    }
    if (g == 0) *(float2*)(at.marks + (query * MOST_PARTS + a.part) * 2) = make_float2(s.m[i], s.l[i]);
  }
}

// The only part of a row is its result. attended: [GROUP][DIM].
__device__ __forceinline__ void write_whole(const Sums& s, u16* attended) {
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = t * 2 + i;
    if (query >= GROUP) continue;
    const float f = 1.f / s.l[i];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = i + 2 * h;
      *(uint4*)(attended + query * DIM + h * 64 + g * 8) =
          make_uint4(pack(s.acc[0][k] * f, s.acc[1][k] * f), pack(s.acc[2][k] * f, s.acc[3][k] * f),
                     pack(s.acc[4][k] * f, s.acc[5][k] * f), pack(s.acc[6][k] * f, s.acc[7][k] * f));
    }
  }
}

__device__ __forceinline__ bool last_to_arrive(const Meeting& at, int parts) {
  u32 before = 0;
  __syncwarp();
  if ((threadIdx.x & 31) == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    before = atomicInc(at.arrived, parts - 1);
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  before = __shfl_sync(~0u, before, 0);
  __syncwarp();
  return before == parts - 1;
}

// The last warp of a head to finish joins its parts in their order, four dimensions a lane.
__device__ __forceinline__ void join(const Stretch& a, const Meeting& at, u16* attended) {
  const int lane = threadIdx.x & 31;
  float keep[GROUP], mass[GROUP];
  float4 sum[GROUP];
#pragma unroll
  for (int q = 0; q < GROUP; ++q) {
    const float* mark = at.marks + (q * MOST_PARTS + lane) * 2;
    const float m = lane < a.parts ? fresh(mark) : -1e30f, l = lane < a.parts ? fresh(mark + 1) : 0.f;
    float top = m;
#pragma unroll
    for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    keep[q] = exp2f(m - top);
    mass[q] = warp_sum(keep[q] * l);
    sum[q] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
#pragma unroll 4
  for (int k = 0; k < a.parts; ++k) {
#pragma unroll
    for (int q = 0; q < GROUP; ++q) {
      const float f = __shfl_sync(~0u, keep[q], k);
      const float4 v = fresh4(at.sums + (k * GROUP + q) * DIM + lane * 4);
      sum[q].x = fmaf(f, v.x, sum[q].x); sum[q].y = fmaf(f, v.y, sum[q].y);
      sum[q].z = fmaf(f, v.z, sum[q].z); sum[q].w = fmaf(f, v.w, sum[q].w);
    }
  }
#pragma unroll
  for (int q = 0; q < GROUP; ++q) {
    const float f = 1.f / mass[q];
    *(uint2*)(attended + q * DIM + lane * 4) =
        make_uint2(pack(sum[q].x * f, sum[q].y * f), pack(sum[q].z * f, sum[q].w * f));
  }
}
