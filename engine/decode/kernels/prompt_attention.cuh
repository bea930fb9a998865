// Flash attention of prompt positions to the KV cache, on tensor cores. Part of prompt.cu.
//
// A block processes a group, up to QUERIES positions of one sequence in any order, and one KV head. A warp holds the
// queries of one head in registers and reads the cache SLOTS slots at a time, up to the last slot that any position of
// the group sees. Masked slots do not change a position's sums, so the sums depend only on its own slots.

#include "mma.cuh"
#include "copy_async.cuh"

constexpr int QUERIES = 16, SLOTS = 32, UNIT = 8;  // UNIT: values in 16 bytes
constexpr float NOT_SEEN = -1e30f;

// Two tiles each of SLOTS keys and of their values. A row's units are swizzled, so that the eight rows of a matrix use
// different banks.
struct Tiles { u16 keys[2][SLOTS * DIM], values[2][SLOTS * DIM]; };
__device__ __forceinline__ int place_of_unit(int slot, int unit) { return slot * DIM + (unit ^ (slot & 7)) * UNIT; }

// Loads four 8 x 8 matrices as operands. Lane i passes the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ uint4 load_matrices(const u16* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_transposed(const u16* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
  return v;
}

// Starts copying the slots from `base` on. Slots from `end` on become zero.
__device__ __forceinline__ void copy_tile(u16* tile, const u16* cache, int base, int end) {
  for (int i = threadIdx.x; i < SLOTS * DIM / UNIT; i += ATTEND_THREADS) {
    const int slot = i / (DIM / UNIT), unit = i % (DIM / UNIT);
    u16* to = tile + place_of_unit(slot, unit);
    if (base + slot < end) copy_async<16>(to, cache + (long long)(base + slot) * DIM + unit * UNIT);
    else *(uint4*)to = make_uint4(0, 0, 0, 0);
  }
}

// Queries g and g + 8 of the lane (g, t) = (lane / 4, lane % 4): positions, m, l and O, of which o[i] holds dimensions
// 8i + 2t and 8i + 2t + 1 of both.
struct Queries {
  u32 q[DIM / 16][4];
  int at[2];
  float m[2], l[2], o[DIM / 8][4];
};

__device__ __forceinline__ void load_queries(Queries& s, const u16* first, const u16* second) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int k = 0; k < DIM / 16; ++k)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s.q[k][2 * i] = *(const u32*)(first + k * 16 + i * 8 + t * 2);
      s.q[k][2 * i + 1] = *(const u32*)(second + k * 16 + i * 8 + t * 2);
    }
#pragma unroll
  for (int i = 0; i < 2; ++i) { s.m[i] = NOT_SEEN; s.l[i] = 0.f; }
#pragma unroll
  for (int i = 0; i < DIM / 8; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k) s.o[i][k] = 0.f;
}

// The online softmax's update of (m, l, O) with a tile whose first slot is `base`.
__device__ __forceinline__ void attend_tile(Queries& s, const u16* keys, const u16* values, int base) {
  const int lane = threadIdx.x & 31, t = lane & 3, matrix = lane >> 3, row = lane & 7;
  float c[SLOTS / 8][4] = {};
#pragma unroll
  for (int n = 0; n < SLOTS / 8; ++n)
#pragma unroll
    for (int k = 0; k < DIM / 32; ++k) {
      const uint4 b = load_matrices(keys + place_of_unit(n * 8 + row, k * 4 + matrix));
      multiply(c[n], s.q[2 * k][0], s.q[2 * k][1], s.q[2 * k][2], s.q[2 * k][3], b.x, b.y);
      multiply(c[n], s.q[2 * k + 1][0], s.q[2 * k + 1][1], s.q[2 * k + 1][2], s.q[2 * k + 1][3], b.z, b.w);
    }
  float top[2] = {s.m[0], s.m[1]};
#pragma unroll
  for (int n = 0; n < SLOTS / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_seen = base + n * 8 + t * 2 + (i & 1) <= s.at[i >> 1];
      c[n][i] = is_seen ? c[n][i] * 0.12751743f : NOT_SEEN;  // 128 ** -0.5 * log2(e)
      top[i >> 1] = fmaxf(top[i >> 1], c[n][i]);
    }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int o = 1; o < 4; o <<= 1) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], o));
    const float keep = exp2f(s.m[i] - top[i]);
    s.m[i] = top[i];
    s.l[i] *= keep;
#pragma unroll
    for (int d = 0; d < DIM / 8; ++d) { s.o[d][2 * i] *= keep; s.o[d][2 * i + 1] *= keep; }
  }
#pragma unroll
  for (int n = 0; n < SLOTS / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      c[n][i] = exp2f(c[n][i] - s.m[i >> 1]);
      s.l[i >> 1] += c[n][i];
    }
#pragma unroll
  for (int k = 0; k < SLOTS / 16; ++k) {
    const u32 a0 = pack(c[2 * k][0], c[2 * k][1]), a1 = pack(c[2 * k][2], c[2 * k][3]);
    const u32 a2 = pack(c[2 * k + 1][0], c[2 * k + 1][1]), a3 = pack(c[2 * k + 1][2], c[2 * k + 1][3]);
#pragma unroll
    for (int d = 0; d < DIM / 16; ++d) {
      const int slot = k * 16 + (matrix & 1) * 8 + row;
      const uint4 b = load_transposed(values + place_of_unit(slot, d * 2 + (matrix >> 1)));
      multiply(s.o[2 * d], a0, a1, a2, a3, b.x, b.y);
      multiply(s.o[2 * d + 1], a0, a1, a2, a3, b.z, b.w);
    }
  }
}

// Writes query i of Queries, 0 or 1, which four lanes hold, if `is_there`. Called by all lanes.
__device__ __forceinline__ void write_query(const Queries& s, int i, u16* attended, bool is_there) {
  float l = s.l[i];
#pragma unroll
  for (int o = 1; o < 4; o <<= 1) l += __shfl_xor_sync(~0u, l, o);
  if (!is_there) return;
  const float f = 1.f / l;
#pragma unroll
  for (int d = 0; d < DIM / 8; ++d)
    *(u32*)(attended + d * 8 + (threadIdx.x & 3) * 2) = pack(s.o[d][2 * i] * f, s.o[d][2 * i + 1] * f);
}
