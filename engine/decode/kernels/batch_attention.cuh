// Flash-decoding for a batch, one query per row and head: splitting of the KV cache over blocks, and combination of
// partial results. Part of batch.cu.

// Positions per split. Depends only on the row's own length. There are at most MAX_SPLITS splits.
__device__ __forceinline__ int split_size(int at) {
  int size = MIN_SPLIT;
  while (at / size >= MAX_SPLITS) size *= 2;
  return size;
}

// Lane i holds rows i, i + 32, ...: new position (-1: no such row, or done) and inclusive prefix sum of split counts.
constexpr int PLACES = PADDED_ROWS / 32;
struct SplitCounts { int at[PLACES], until[PLACES], total; };
__device__ __forceinline__ SplitCounts count_splits(const long long* position, const u8* done, int rows) {
  const int lane = threadIdx.x & 31;
  SplitCounts p;
  int before = 0;
#pragma unroll
  for (int i = 0; i < PLACES; ++i) {
    const int row = lane + 32 * i;
    p.at[i] = row < rows && !done[row] ? (int)position[row] : -1;
  }
#pragma unroll
  for (int i = 0; i < PLACES; ++i) {
    int sum = p.at[i] < 0 ? 0 : p.at[i] / split_size(p.at[i]) + 1;
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

__device__ __forceinline__ int value_of_row(const int (&value)[PLACES], int row) {
  int found = 0;
#pragma unroll
  for (int i = 0; i < PLACES; ++i) {
    const int one = __shfl_sync(~0u, value[i], row & 31);
    if (row >> 5 == i) found = one;
  }
  return found;
}
__device__ __forceinline__ Split split_of(const SplitCounts& p, int item) {
  const int split = item / KV_HEADS;
  Split a;
  a.row = 0;
#pragma unroll
  for (int i = 0; i < PLACES; ++i) a.row += __popc(__ballot_sync(~0u, p.until[i] <= split));
  a.kv = item % KV_HEADS;
  a.at = value_of_row(p.at, a.row);
  const int size = split_size(a.at);
  a.count = a.at / size + 1;
  a.index = split - value_of_row(p.until, a.row) + a.count;
  a.from = a.index * size;
  a.to = min(a.from + size, a.at + 1);
  return a;
}

__device__ __forceinline__ void clear_queries(Shared& sh) {
  for (int i = threadIdx.x; i < MAX_GROUP * Q_PITCH; i += WARPS * 32) sh.q[i / Q_PITCH][i % Q_PITCH] = 0;
}

// Four of a row's qkv, which are the sum of QKV_PARTS products.
__device__ __forceinline__ uint2 load_qkv(const u16* part) {
  uint2 parts[QKV_PARTS];
#pragma unroll
  for (int i = 0; i < QKV_PARTS; ++i) parts[i] = load4(part + (long long)i * PADDED_ROWS * QKV_SIZE);
  if (QKV_PARTS == 1) return parts[0];
  float4 sum = unpack4(parts[0]);
#pragma unroll
  for (int i = 1; i < QKV_PARTS; ++i) {
    const float4 v = unpack4(parts[i]);
    sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
  }
  return pack4(sum);
}

// Writes the KV head's queries, normed and rotated, to shared memory. The last split also writes the new key and value
// there and to the cache. A warp takes one or two of these vectors.
__device__ __forceinline__ void place_qkv(const Split& a, const u16* qkv, const u16* norm, const u16* cos,
                                          const u16* sin, u16* keys, u16* values, Shared& sh) {
  constexpr int VECTORS = GROUP + 2, PASSES = (VECTORS + WARPS - 1) / WARPS;
  const int warp = threadIdx.x >> 5, count = a.to > a.at ? VECTORS : GROUP;
  const Rope rope = load_rope(cos, sin, a.at);
  uint2 raw[PASSES], weight[PASSES];
#pragma unroll
  for (int j = 0; j < PASSES; ++j) {
    const int i = min(warp + j * WARPS, VECTORS - 1);
    const int head = i < GROUP ? a.kv * GROUP + i : HEADS + (i - GROUP) * KV_HEADS + a.kv;
    raw[j] = load_qkv(qkv + head * DIM);
    weight[j] = i <= GROUP ? load_norm(norm, head) : make_uint2(0, 0);
  }
  __syncthreads();  // all warps are done with the previous item
#pragma unroll
  for (int j = 0; j < PASSES; ++j) {
    const int i = warp + j * WARPS;
    if (i >= count) continue;
    const uint2 v = i <= GROUP ? pack4(norm_rope(unpack4(raw[j]), weight[j], rope)) : raw[j];
    if (i < GROUP) store4(sh.q[i], v);
    else place_new(v, i == GROUP ? sh.key : sh.value, i == GROUP ? keys : values, a.at, true);
  }
  __syncthreads();
}

// Keeps those of the KV head's queries, in shared memory, that are to be kept.
__device__ __forceinline__ void keep_queries(const Split& a, u16* queries, u64 heads, int rows, int slots,
                                             const Shared& sh) {
  for (int i = threadIdx.x >> 5; i < GROUP; i += WARPS) {
    u16* kept = kept_query(queries, heads, a.kv * GROUP + i, a.row, rows, slots, a.at);
    if (kept) store4(kept, load4(sh.q[i]));
  }
}

// Start of the warp's first tile in the split. Its tiles are STRIDE positions apart.
constexpr int STRIDE = WARPS * TILE;
__device__ __forceinline__ int first_tile(const Split& a) { return a.from + (int)(threadIdx.x >> 5) * TILE; }

// Online softmax over the warp's tiles in the split. `tile` holds the first tile.
__device__ __forceinline__ Accumulator attend_split(const Split& a, Tile& tile, const u16* keys, const u16* values,
                                                    const Shared& sh) {
  Accumulator s = {{-1e30f, -1e30f}};
#pragma unroll 1
  for (int base = first_tile(a); base < a.to; base += STRIDE) {
    if (base + TILE > a.at) insert_new(tile, a, base, sh);
    float c[4];
    score(c, tile, sh);
    load_keys(tile, keys, a, base + STRIDE);
    accumulate(s, c, tile, a, base);
    load_values(tile, values, a, base + STRIDE);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) s.l[i] = sum_of_column(s.l[i]);
  return s;
}

// Partial result for one query, spread over a warp: four dimensions of O per lane.
struct Partial { float4 o; float m, l; };
__device__ __forceinline__ void add(Partial& w, float f, float4 v) {
  w.o.x = fmaf(f, v.x, w.o.x); w.o.y = fmaf(f, v.y, w.o.y);
  w.o.z = fmaf(f, v.z, w.o.z); w.o.w = fmaf(f, v.w, w.o.w);
}

// Combines the block's warps. Warp q gets query q.
__device__ __forceinline__ Partial combine_warps(const Accumulator& s, Shared& sh) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = t * 2 + i;
    if (query >= GROUP) continue;
    float* to = sh.o[warp][query] + g * 8;
#pragma unroll
    for (int m = 0; m < 8; m += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = i + 2 * h;
        *(float4*)(to + h * 64 + m) = make_float4(s.o[m][k], s.o[m + 1][k], s.o[m + 2][k], s.o[m + 3][k]);
      }
    }
    if (g == 0) sh.ml[warp][query] = make_float2(s.m[i], s.l[i]);
  }
  __syncthreads();
  Partial w = {{0.f, 0.f, 0.f, 0.f}, -1e30f, 0.f};
  if (warp >= GROUP) return w;
#pragma unroll
  for (int k = 0; k < WARPS; ++k) w.m = fmaxf(w.m, sh.ml[k][warp].x);
#pragma unroll
  for (int k = 0; k < WARPS; ++k) {
    const float2 ml = sh.ml[k][warp];
    const float f = exp2f(ml.x - w.m);
    w.l = fmaf(f, ml.y, w.l);
    add(w, f, *(const float4*)(sh.o[k][warp] + lane * 4));
  }
  return w;
}

// attended: [GROUP][DIM].
__device__ __forceinline__ void write_output(const Partial& w, u16* attended) {
  const float f = 1.f / w.l;
  *(uint2*)(attended + threadIdx.x * 4) = make_uint2(pack(w.o.x * f, w.o.y * f), pack(w.o.z * f, w.o.w * f));
}

// Partial results of the splits of one row and KV head, and the number of splits that have written them.
struct Workspace {
  float* o;    // [splits][GROUP][DIM]
  float2* ml;  // [GROUP][MAX_SPLITS]
  u32* arrived;
};

__device__ __forceinline__ void write_partial(const Split& a, const Partial& w, const Workspace& to) {
  *(float4*)(to.o + a.index * (GROUP * DIM) + threadIdx.x * 4) = w.o;
  if ((threadIdx.x & 31) == 0) to.ml[(threadIdx.x >> 5) * MAX_SPLITS + a.index] = make_float2(w.m, w.l);
}

// True if this block is the last of the head's splits to arrive. It then sees the writes of the others.
__device__ __forceinline__ bool last_to_arrive(const Workspace& of, int splits, Shared& sh) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    sh.last = atomicInc(of.arrived, splits - 1) == splits - 1;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __syncthreads();
  return sh.last;
}

// Combines a head's splits in order, so that the result does not depend on which block came last.
__device__ __forceinline__ Partial combine_splits(const Split& a, const Workspace& from) {
  const int lane = threadIdx.x & 31;
  const float* ml = (const float*)(from.ml + (threadIdx.x >> 5) * MAX_SPLITS + lane);
  const float m = lane < a.count ? load_cg(ml) : -1e30f, l = lane < a.count ? load_cg(ml + 1) : 0.f;
  Partial w = {{0.f, 0.f, 0.f, 0.f}, m, 0.f};
#pragma unroll
  for (int o = 16; o; o >>= 1) w.m = fmaxf(w.m, __shfl_xor_sync(~0u, w.m, o));
  const float keep = exp2f(m - w.m);
  w.l = warp_sum(keep * l);
#pragma unroll 4
  for (int k = 0; k < a.count; ++k)
    add(w, __shfl_sync(~0u, keep, k), load_cg4(from.o + k * (GROUP * DIM) + threadIdx.x * 4));
  return w;
}
