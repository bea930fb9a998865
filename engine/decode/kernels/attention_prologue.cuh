// Steps between the qkv product and attention: per-head RMSNorm and RoPE of queries and keys, and storing the new key
// and value in the cache. Part of single.cu and batch.cu.
//
// A warp takes one vector of DIM, four dimensions per lane: 4 * lane to 4 * lane + 3.
static_assert(DIM == 32 * 4 && HEAD_DIM == DIM, "a warp holds a vector, four dimensions a lane");

__device__ __forceinline__ uint2 load4(const u16* vector) { return *(const uint2*)(vector + (threadIdx.x & 31) * 4); }
__device__ __forceinline__ void store4(u16* vector, uint2 v) { *(uint2*)(vector + (threadIdx.x & 31) * 4) = v; }

struct Rope { uint2 cos, sin; };
__device__ __forceinline__ Rope load_rope(const u16* cos, const u16* sin, int at) {
  return {load4(cos + (long long)at * DIM), load4(sin + (long long)at * DIM)};
}
// Norm weights of a head, numbered over the query heads, then the key heads. Unused without a norm.
__device__ __forceinline__ uint2 load_norm(const u16* norm, int head) {
  return HAS_QK_NORM ? load4(norm + head * DIM) : make_uint2(0, 0);
}

__device__ __forceinline__ float4 norm_rope(float4 v, uint2 norm, Rope rope) {
#if HAS_QK_NORM
  const float scale = rsqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) * (1.f / DIM) + EPS);
  const float4 w = unpack4(norm);
  v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
#endif
  const float sign = (threadIdx.x & 31) < 16 ? -1.f : 1.f;
  const float4 o = make_float4(sign * __shfl_xor_sync(~0u, v.x, 16), sign * __shfl_xor_sync(~0u, v.y, 16),
                               sign * __shfl_xor_sync(~0u, v.z, 16), sign * __shfl_xor_sync(~0u, v.w, 16));
  const float4 cos = unpack4(rope.cos), sin = unpack4(rope.sin);
  return make_float4(v.x * cos.x + o.x * sin.x, v.y * cos.y + o.y * sin.y, v.z * cos.z + o.z * sin.z,
                     v.w * cos.w + o.w * sin.w);
}

// Where a head's query at position `at` is kept, or null. queries: of a layer, [n][rows][max_seq_len][DIM]. heads: a bit
// for each of the n heads.
static_assert(HEADS <= 64, "a layer's heads have a bit each");
__device__ __forceinline__ u16* kept_query(u16* queries, u64 heads, int head, int row, int rows, int slots, int at) {
  if (!(heads >> head & 1)) return nullptr;
  const int number = __popcll(heads & ((1ull << head) - 1));
  return queries + (((long long)number * rows + row) * slots + at) * DIM;
}

// Stores a new key or value in shared memory for the block, and in its cache slot for later steps.
__device__ __forceinline__ void place_new(uint2 vector, u16* shared, u16* cache, int at, bool to_cache) {
  store4(shared, vector);
  if (to_cache) store4(cache + (long long)at * DIM, vector);
}
