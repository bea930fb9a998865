// What single.cu is given, and how its blocks hand values to each other. Part of single.cu.

constexpr int WARPS = 16, THREADS = WARPS * 32;

struct LayerWeights { const u16 *attn_norm, *qkv, *qk_norm, *out, *mlp_norm, *gate_up, *down; };

struct SingleArgs {
  const LayerWeights* layers;
  const u16 *x_in, *head, *norm, *cos, *sin;
  u16 *keys, *values;         // [layers][KV_HEADS][slots][DIM], this row's part; layer stride below
  const long long* position;  // where this step's key and value go
  float* logits;
  u32 *x, *qkv;  // these five are handed on, partial with whole numbers beside the values
  u64* partial;
  u32 *attended, *act;
  u32 *rounds, *arrivals;  // hand-overs of all launches before this one; blocks that have reached theirs
  long long layer_stride;
  int layer_count, slots;
};

// A value that other blocks wait for is stored in one word with the number of its hand-over, 24 bits of fp32 and 8 of
// the number, and a reader looks until the number is the one it waits for: no fence, and no barrier over the grid. The
// count of blocks that have come so far only keeps readers from looking too early and too often. It does not wait for
// the last ones: their values come while the others' are on their way. A value is overwritten by blocks only that have
// values of every block from a later hand-over, so nobody misses one. Words are written anew in every layer, so eight
// bits tell old from new; what is not has its whole number beside it. Numbers go on from launch to launch and may wrap
// around.
constexpr int LATECOMERS = 8;
__device__ __forceinline__ u32 word_of(float v, u32 round) {  // rounds to nearest; a NaN stays one
  return ((v != v ? ~0u : __float_as_uint(v) + 0x80u) & ~0xffu) | (round & 0xffu);
}
__device__ __forceinline__ u32 bf16_word_of(float v, u32 round) { return pack(0.f, v) | (round & 0xffu); }
__device__ __forceinline__ float value_of(u32 word) { return __uint_as_float(word & ~0xffu); }
__device__ __forceinline__ void hand(u32* to, u32 word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void hand(u64* to, float v, u32 round) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"((u64)round << 32 | __float_as_uint(v)) : "memory");
}
__device__ __forceinline__ void arrive(const SingleArgs& s) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(s.arrivals) : "memory");
}
__device__ __forceinline__ void wait(const SingleArgs& s, u32 round) {
  if (threadIdx.x == 0) {
    u32 now;
    do asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(s.arrivals) : "memory");
    while ((int)(now + LATECOMERS - round * BLOCKS) < 0);
  }
  __syncthreads();
}
__device__ __forceinline__ uint4 look(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
// Which of four words are not yet of this round, in the lowest eight bits.
__device__ __forceinline__ u32 missing(uint4 w, u32 round) {
  return ((w.x ^ round) | (w.y ^ round) | (w.z ^ round) | (w.w ^ round)) & 0xffu;
}
__device__ __forceinline__ float4 received(uint4 w, const u32* from, u32 round) {  // w: what was there just before
  while (missing(w, round)) w = look(from);
  return make_float4(value_of(w.x), value_of(w.y), value_of(w.z), value_of(w.w));
}
__device__ __forceinline__ float4 receive4(const u32* from, u32 round) { return received(look(from), from, round); }
// The thread's number, so that addresses made of it are not kept in registers from layer to layer.
__device__ __forceinline__ int thread_anew() { int t = threadIdx.x; asm volatile("" : "+r"(t)); return t; }
// The block's threads look at `count` times four words, all of a thread's at once. Past the end they look at the last
// ones: a condition around a look costs registers, which spill.
template <int N>
__device__ __forceinline__ void look_at(uint4 (&words)[N], const u32* from, int count) {
  const int t = thread_anew();
#pragma unroll
  for (int j = 0; j < N; ++j) words[j] = look(from + min(j * THREADS + t, count - 1) * 4);
}
