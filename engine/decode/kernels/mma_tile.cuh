// Attention to TILE cache positions on tensor cores, for all queries of a KV head at once. Part of batch.cu.
//
// A warp loads the operands of m16n8k16 directly from global memory. The order of dimensions within a product is free,
// so each lane loads 16 contiguous bytes. The queries are the product's columns.

#include "mma.cuh"

constexpr int WARPS = ATTEND_THREADS / 32, TILE = 16, MAX_GROUP = 8, Q_PITCH = DIM + 8;
static_assert(GROUP <= MAX_GROUP && MIN_SPLIT % (WARPS * TILE) == 0, "a tile holds all queries, a split whole tiles");
static_assert(GROUP <= WARPS && MAX_SPLITS <= 32, "to combine, a query has a warp and a split a lane");

struct Shared {
  u16 q[MAX_GROUP][Q_PITCH];
  u16 key[DIM], value[DIM];    // of the new position
  float o[WARPS][GROUP][DIM];  // partial results of the warps
  float2 ml[WARPS][GROUP];
  bool last;
};

// A block's work item: split `index` of `count` of a row and KV head, positions [from, to). `at`: the new position.
struct Split { int row, kv, index, count, from, to, at; };

// Lane (g, t) = (lane / 4, lane % 4). Keys: positions g and g + 8, dimensions 32 * j + 8 * t + 0..7.
// Values: positions 2t, 2t + 1, 2t + 8, 2t + 9, dimensions 8 * g + 0..7 and 64 + 8 * g + 0..7.
struct Tile { uint4 k[2][4], v[4][2]; };
__device__ __forceinline__ uint4 read_cache(const u16* cache, const Split& a, int at, int dim) {
  return at < a.to && at < a.at ? load_nc16(cache + (long long)at * DIM + dim) : make_uint4(0, 0, 0, 0);
}
__device__ __forceinline__ int value_position(int i) { return (threadIdx.x & 3) * 2 + (i & 1) + (i >> 1) * 8; }

__device__ __forceinline__ void load_keys(Tile& tile, const u16* keys, const Split& a, int base) {
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int j = 0; j < 4; ++j) tile.k[r][j] = read_cache(keys, a, base + g + r * 8, j * 32 + t * 8);
}
__device__ __forceinline__ void load_values(Tile& tile, const u16* values, const Split& a, int base) {
  const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) tile.v[i][h] = read_cache(values, a, base + value_position(i), h * 64 + g * 8);
}
// Takes the new position from shared memory instead of the cache.
__device__ __forceinline__ void insert_new(Tile& tile, const Split& a, int base, const Shared& sh) {
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

__device__ __forceinline__ u32 transpose(u32 v) {  // of 8 x 8 values, two of a row per lane
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

// (m, l, O) of queries 2t and 2t + 1; o[i] holds dimensions 8g + i (first two) and 64 + 8g + i.
struct Accumulator { float m[2], l[2], o[8][4]; };

// Scores of positions g and g + 8 of the tile for queries 2t and 2t + 1, as base-2 exponents.
__device__ __forceinline__ void score(float (&c)[4], const Tile& tile, const Shared& sh) {
  const u16* queries = sh.q[(threadIdx.x & 31) >> 2] + (threadIdx.x & 3) * 8;
  float other[4] = {0.f, 0.f, 0.f, 0.f};
  c[0] = c[1] = c[2] = c[3] = 0.f;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 q = *(const uint4*)(queries + j * 32);
    multiply(c, tile.k[0][j].x, tile.k[1][j].x, tile.k[0][j].y, tile.k[1][j].y, q.x, q.y);
    multiply(other, tile.k[0][j].z, tile.k[1][j].z, tile.k[0][j].w, tile.k[1][j].w, q.z, q.w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = (c[i] + other[i]) * 0.12751743f;  // 128 ** -0.5 * log2(e)
}

__device__ __forceinline__ u32 component(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Online softmax update of (m, l, O) with the tile's scores and values.
__device__ __forceinline__ void accumulate(Accumulator& s, float (&c)[4], const Tile& tile, const Split& a, int base) {
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
    for (int m = 0; m < 8; ++m) { s.o[m][i] *= keep; s.o[m][i + 2] *= keep; }
  }
  const u32 b0 = transpose(pack(c[0], c[1])), b1 = transpose(pack(c[2], c[3]));
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    u32 v[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) { v[i][0] = component(tile.v[i][0], m / 2); v[i][1] = component(tile.v[i][1], m / 2); }
    const u32 halves = m & 1 ? 0x7632 : 0x5410;  // of one dimension at two positions
    multiply(s.o[m], __byte_perm(v[0][0], v[1][0], halves), __byte_perm(v[0][1], v[1][1], halves),
             __byte_perm(v[2][0], v[3][0], halves), __byte_perm(v[2][1], v[3][1], halves), b0, b1);
  }
}
