// What decode.cu is given, and how its blocks hand values to each other. Part of decode.cu.

constexpr int WARPS = 16, THREADS = WARPS * 32;

struct LayerWeights { const u16 *attn_norm, *qkv, *qk_norm, *out, *mlp_norm, *gate_up, *down; };

struct Step {
  const LayerWeights* layers;
  const u16 *x_in, *head, *norm, *cos, *sin;
  u16 *keys, *values;         // [layers][KV_HEADS][slots][DIM], this row's part; layer stride below
  const long long* position;  // where this step's key and value go
  float* logits;
  u64 *x, *qkv, *partial;  // handed on in fp32
  u32 *attended, *act;     // handed on in bf16
  u32 *rounds, *arrivals;  // hand-overs of all launches before this one; blocks that have reached theirs
  long long layer_stride;
  int layer_count, slots;
};

// A value that other blocks wait for is stored together with the number of its hand-over, in one word, and a reader
// looks until the number is the one it waits for: no fence, and no barrier over the grid. The count of blocks that
// have come so far only keeps readers from looking too early and too often. A value is overwritten by blocks only that
// have values of every block from a later hand-over, so nobody misses one. Numbers go on from launch to launch and may
// wrap around.
__device__ __forceinline__ void hand(u64* to, float v, u32 round) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"((u64)round << 32 | __float_as_uint(v)) : "memory");
}
__device__ __forceinline__ void hand(u32* to, float v, u32 round) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(round << 16 | to_bf16(v)) : "memory");
}
__device__ __forceinline__ void arrive(const Step& s) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(s.arrivals) : "memory");
}
__device__ __forceinline__ void wait(const Step& s, u32 round) {
  if (threadIdx.x == 0) {
    u32 now;
    do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(s.arrivals) : "memory");
    while ((int)(now - round * BLOCKS) < 0);
  }
  __syncthreads();
}
__device__ __forceinline__ uint4 look(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
// N pairs of fp32 values, `stride` values apart, each at an even index.
template <int N>
__device__ __forceinline__ void receive(const u64* from, int stride, u32 round, float2* v) {
  uint4 seen[N];
  bool all;
  do {
    all = true;
#pragma unroll
    for (int i = 0; i < N; ++i) seen[i] = look(from + i * stride);
#pragma unroll
    for (int i = 0; i < N; ++i) all &= seen[i].y == round && seen[i].w == round;
  } while (!all);
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = make_float2(__uint_as_float(seen[i].x), __uint_as_float(seen[i].z));
}
// LANE bf16 values, packed.
__device__ __forceinline__ uint4 receive(const u32* from, u32 round) {
  const u32 want = round << 16;
  uint4 a, b;
  u32 other;
  do {
    a = look(from);
    b = look(from + 4);
    other = (a.x ^ want) | (a.y ^ want) | (a.z ^ want) | (a.w ^ want) | (b.x ^ want) | (b.y ^ want) | (b.z ^ want) |
            (b.w ^ want);
  } while (other >> 16);
  return make_uint4(__byte_perm(a.x, a.y, 0x5410), __byte_perm(a.z, a.w, 0x5410), __byte_perm(b.x, b.y, 0x5410),
                    __byte_perm(b.z, b.w, 0x5410));
}
