// One query a row against the filled part of its cache, a chunk of positions a block, on the tensor cores. Part of
// rows.cu.
//
// A warp takes TILE positions at a time straight from memory into the operands of m16n8k16: the order of dimensions
// within a product is free, so each lane loads 16 bytes in a row. Queries of one kv head are the product's columns.

constexpr int CREW = 4, TILE = 16, MOST_ROWS = 64, COLUMNS = 8, Q_PITCH = DIM + 8;
static_assert(GROUP <= COLUMNS && CHUNK % TILE == 0, "a tile holds all queries of a kv head");

struct Crew {  // shared memory of a block
  u16 q[COLUMNS][Q_PITCH];
  u16 key[DIM], value[DIM];  // of the position that is new
  float m[CREW][COLUMNS], l[CREW][COLUMNS];
  float acc[CREW][GROUP][DIM];
  int last;
};

struct Chunks {  // a lane knows rows `lane` and `lane + 32`: their new positions, and chunks up to and with them
  int at[2], until[2], total;
};
__device__ __forceinline__ Chunks count_chunks(const long long* position, int rows) {
  const int lane = threadIdx.x & 31;
  Chunks c;
  int before = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane + 32 * i;
    c.at[i] = row < rows ? (int)position[row] : 0;
    int sum = row < rows ? c.at[i] / CHUNK + 1 : 0;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    c.until[i] = before + sum;
    before = __shfl_sync(~0u, c.until[i], 31);
  }
  c.total = before;
  return c;
}

struct Stretch { int row, kv, chunk, chunks, from, to, at; };  // positions [from, to); at: the one that is new
__device__ __forceinline__ int of_row(const int (&value)[2], int row) {
  const int first = __shfl_sync(~0u, value[0], row & 31), second = __shfl_sync(~0u, value[1], row & 31);
  return row < 32 ? first : second;
}
__device__ __forceinline__ Stretch stretch_of(const Chunks& c, int unit, int kv) {
  Stretch a;
  a.row = __popc(__ballot_sync(~0u, c.until[0] <= unit)) + __popc(__ballot_sync(~0u, c.until[1] <= unit));
  a.kv = kv;
  a.at = of_row(c.at, a.row);
  a.chunks = a.at / CHUNK + 1;
  a.chunk = unit - of_row(c.until, a.row) + a.chunks;
  a.from = a.chunk * CHUNK;
  a.to = min(a.from + CHUNK, a.at + 1);
  return a;
}

__device__ __forceinline__ void clear_queries(Crew& sh) {
  for (int i = threadIdx.x; i < COLUMNS * Q_PITCH; i += CREW * 32) sh.q[i / Q_PITCH][i % Q_PITCH] = 0;
  __syncthreads();
}

// Lane (g, t) = (lane / 4, lane % 4). Keys: positions g and g + 8, dimensions 32 * j + 8 * t of piece j.
// Values: positions 2t, 2t + 1, 2t + 8, 2t + 9, dimensions 8 * g and 64 + 8 * g.
struct Tile { uint4 k[2][4], v[4][2]; };
__device__ __forceinline__ int value_position(int i) { return (threadIdx.x & 3) * 2 + (i & 1) + (i >> 1) * 8; }

__device__ __forceinline__ void load_keys(Tile& tile, const u16* keys, const Stretch& a, int base) {
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = base + g + r * 8;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      tile.k[r][j] = at < a.to && at < a.at ? stream16(keys + (long long)at * DIM + j * 32 + t * 8) : make_uint4(0, 0, 0, 0);
  }
}
__device__ __forceinline__ void load_values(Tile& tile, const u16* values, const Stretch& a, int base) {
  const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = base + value_position(i);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      tile.v[i][h] = at < a.to && at < a.at ? stream16(values + (long long)at * DIM + h * 64 + g * 8) : make_uint4(0, 0, 0, 0);
  }
}
// The new position is not read from the cache: it is in shared memory.
__device__ __forceinline__ void insert_new(Tile& tile, const Stretch& a, int base, const Crew& sh) {
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (base + g + r * 8 == a.at)
#pragma unroll
      for (int j = 0; j < 4; ++j) tile.k[r][j] = *(const uint4*)(sh.key + j * 32 + t * 8);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (base + value_position(i) == a.at)
#pragma unroll
      for (int h = 0; h < 2; ++h) tile.v[i][h] = *(const uint4*)(sh.value + h * 64 + g * 8);
}

// Per-head norm and rotation of one vector of 128, four values a lane, rounded to bf16.
__device__ __forceinline__ uint2 norm_rotate(uint2 raw, const u16* norm, uint2 cos, uint2 sin) {
  const int lane = threadIdx.x & 31;
  float4 v = make_float4(low(raw.x), high(raw.x), low(raw.y), high(raw.y));
#if HAS_QK_NORM
  const uint2 w = *(const uint2*)(norm + lane * 4);
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
                                          const u16* sin, u16* keys, u16* values, Crew& sh) {
  const int lane = threadIdx.x & 31;
  const uint2 c = *(const uint2*)(cos + (long long)a.at * DIM + lane * 4);
  const uint2 s = *(const uint2*)(sin + (long long)a.at * DIM + lane * 4);
  const int heads = a.to > a.at ? GROUP + 2 : GROUP;
  for (int i = threadIdx.x >> 5; i < heads; i += CREW) {
    const int head = i < GROUP ? a.kv * GROUP + i : HEADS + (i - GROUP) * KV_HEADS + a.kv;
    uint2 v = *(const uint2*)(qkv + head * DIM + lane * 4);
    if (i <= GROUP) v = norm_rotate(v, norm + head * DIM, c, s);
    u16* to = i < GROUP ? sh.q[i] : i == GROUP ? sh.key : sh.value;
    *(uint2*)(to + lane * 4) = v;
    if (i >= GROUP) *(uint2*)((i == GROUP ? keys : values) + (long long)a.at * DIM + lane * 4) = v;
  }
  __syncthreads();
}

// c += a * b with a [16, 16], b [16, 8] in bf16, laid out over the lanes as the instruction of 8.0 wants them.
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800 && !defined(NO_TENSOR_CORES)
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  const int lane = threadIdx.x & 31, row = lane & ~3, column = (lane & 3) * 8;  // first lanes of a's row, b's columns
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    const u32 top[2] = {__shfl_sync(~0u, a0, row + k), __shfl_sync(~0u, a2, row + k)};
    const u32 bottom[2] = {__shfl_sync(~0u, a1, row + k), __shfl_sync(~0u, a3, row + k)};
    const u32 left[2] = {__shfl_sync(~0u, b0, column + k), __shfl_sync(~0u, b1, column + k)};
    const u32 right[2] = {__shfl_sync(~0u, b0, column + 4 + k), __shfl_sync(~0u, b1, column + 4 + k)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      c[0] = fmaf(high(top[i]), high(left[i]), fmaf(low(top[i]), low(left[i]), c[0]));
      c[1] = fmaf(high(top[i]), high(right[i]), fmaf(low(top[i]), low(right[i]), c[1]));
      c[2] = fmaf(high(bottom[i]), high(left[i]), fmaf(low(bottom[i]), low(left[i]), c[2]));
      c[3] = fmaf(high(bottom[i]), high(right[i]), fmaf(low(bottom[i]), low(right[i]), c[3]));
    }
  }
#endif
}
__device__ __forceinline__ u32 transpose(u32 v) {  // of 8 x 8 values, two of a row a lane
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
__device__ __forceinline__ float max_of_column(float v) {
#pragma unroll
  for (int o = 4; o < 32; o <<= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
__device__ __forceinline__ float sum_of_column(float v) {
#pragma unroll
  for (int o = 4; o < 32; o <<= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// Of queries 2t and 2t + 1: the running maximum and mass, and sums of dimensions 8g + m (first two), 64 + 8g + m.
struct Sums { float m[2], l[2], acc[8][4]; };

// Scores of the tile's positions g and g + 8 for queries 2t and 2t + 1, in powers of two.
__device__ __forceinline__ void score(float (&c)[4], const Tile& tile, const Crew& sh) {
  const u16* queries = sh.q[(threadIdx.x & 31) >> 2] + (threadIdx.x & 3) * 8;
  c[0] = c[1] = c[2] = c[3] = 0.f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 q = *(const uint4*)(queries + j * 32);
    multiply(c, tile.k[0][j].x, tile.k[1][j].x, tile.k[0][j].y, tile.k[1][j].y, q.x, q.y);
    multiply(c, tile.k[0][j].z, tile.k[1][j].z, tile.k[0][j].w, tile.k[1][j].w, q.z, q.w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] *= 0.12751743f;  // 128 ** -0.5 * log2(e)
}

__device__ __forceinline__ u32 word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Weighs the tile's values with its scores and adds them up.
__device__ __forceinline__ void weigh(Sums& s, float (&c)[4], const Tile& tile, const Stretch& a, int base) {
  const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (base + g + (i >> 1) * 8 >= a.to) c[i] = -1e30f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float top = fmaxf(s.m[i], max_of_column(fmaxf(c[i], c[i + 2]))), keep = exp2f(s.m[i] - top);
    s.m[i] = top;
    c[i] = exp2f(c[i] - top);
    c[i + 2] = exp2f(c[i + 2] - top);
    s.l[i] = s.l[i] * keep + c[i] + c[i + 2];
#pragma unroll
    for (int m = 0; m < 8; ++m) { s.acc[m][i] *= keep; s.acc[m][i + 2] *= keep; }
  }
  const u32 b0 = transpose(pack(c[0], c[1])), b1 = transpose(pack(c[2], c[3]));
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    u32 v[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) { v[i][0] = word_of(tile.v[i][0], m / 2); v[i][1] = word_of(tile.v[i][1], m / 2); }
    const u32 halves = m & 1 ? 0x7632 : 0x5410;  // of one dimension at two positions
    multiply(s.acc[m], __byte_perm(v[0][0], v[1][0], halves), __byte_perm(v[0][1], v[1][1], halves),
             __byte_perm(v[2][0], v[3][0], halves), __byte_perm(v[2][1], v[3][1], halves), b0, b1);
  }
}

// The warps take the chunk's tiles in turn; `tile` holds each one's first. Their sums go into shared memory.
__device__ __forceinline__ void attend_stretch(const Stretch& a, Tile& tile, const u16* keys, const u16* values,
                                               Crew& sh) {
  const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  Sums s = {{-1e30f, -1e30f}};
  for (int base = a.from + warp * TILE; base < a.to; base += CREW * TILE) {
    if (base + TILE > a.at) insert_new(tile, a, base, sh);
    float c[4];
    score(c, tile, sh);
    load_keys(tile, keys, a, base + CREW * TILE);
    weigh(s, c, tile, a, base);
    load_values(tile, values, a, base + CREW * TILE);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = t * 2 + i;
    const float mass = sum_of_column(s.l[i]);
    if (query < GROUP) {
#pragma unroll
      for (int m = 0; m < 8; m += 4) {
        float* to = sh.acc[warp][query] + g * 8 + m;
        *(float4*)to = make_float4(s.acc[m][i], s.acc[m + 1][i], s.acc[m + 2][i], s.acc[m + 3][i]);
        *(float4*)(to + 64) = make_float4(s.acc[m][i + 2], s.acc[m + 1][i + 2], s.acc[m + 2][i + 2], s.acc[m + 3][i + 2]);
      }
      if (g == 0) { sh.m[warp][query] = s.m[i]; sh.l[warp][query] = mass; }
    }
  }
  __syncthreads();
}

struct Joined { float top, sum, mass; };
__device__ __forceinline__ void write_part(float* to, const Joined& j) {
  to[threadIdx.x] = j.sum;
  if (threadIdx.x == 0) { to[DIM] = j.top; to[DIM + 1] = j.mass; }
}

// One dimension a thread: the sums of the block's warps, in their order, are the chunk's; where there are several
// chunks, the last block to finish joins them in theirs. partial: [chunks][GROUP][DIM + 2].
__device__ __forceinline__ void join(const Stretch& a, float* partial, u32* arrived, u16* attended, Crew& sh) {
  constexpr int PART = DIM + 2;
  const int d = threadIdx.x;
  for (int q = 0; q < GROUP; ++q) {
    Joined j = {-1e30f, 0.f, 0.f};
    for (int w = 0; w < CREW; ++w) j.top = fmaxf(j.top, sh.m[w][q]);
    for (int w = 0; w < CREW; ++w) {
      const float keep = exp2f(sh.m[w][q] - j.top);
      j.sum = fmaf(keep, sh.acc[w][q][d], j.sum);
      j.mass = fmaf(keep, sh.l[w][q], j.mass);
    }
    if (a.chunks == 1) attended[q * DIM + d] = (u16)to_bf16(j.sum / j.mass);
    else write_part(partial + (a.chunk * GROUP + q) * PART, j);
  }
  if (a.chunks > 1) {
    __threadfence();
    __syncthreads();
    if (d == 0) sh.last = atomicInc(arrived, a.chunks - 1) == a.chunks - 1;
    __syncthreads();
    if (sh.last) {
      __threadfence();
      for (int q = 0; q < GROUP; ++q) {
        Joined j = {-1e30f, 0.f, 0.f};
        for (int k = 0; k < a.chunks; ++k) j.top = fmaxf(j.top, fresh(partial + (k * GROUP + q) * PART + DIM));
        for (int k = 0; k < a.chunks; ++k) {
          const float* from = partial + (k * GROUP + q) * PART;
          const float keep = exp2f(fresh(from + DIM) - j.top);
          j.sum = fmaf(keep, fresh(from + d), j.sum);
          j.mass = fmaf(keep, fresh(from + DIM + 1), j.mass);
        }
        attended[q * DIM + d] = (u16)to_bf16(j.sum / j.mass);
      }
    }
  }
  __syncthreads();
}
static_assert(CREW * 32 == DIM, "a thread of a block joins one dimension");
