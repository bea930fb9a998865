// Arguments of single.cu, and exchange of values between its blocks by LL-style flag-in-word signalling. Part of
// single.cu.
//
// As in NCCL's LL protocol, a word carries its own flag: 24 bits of an fp32 or bf16 value and the low 8 bits of the
// epoch in which it was published. Consumers poll until the epoch matches, so no fences and no grid barrier are needed.
// A layer has five exchanges, epochs r + 1 to r + 5, where r is the last epoch of the previous layer. Epochs continue
// across launches and may wrap around.
//
// buffer   | producer -> consumer             | epoch | overwritten | all readers are done once the writer has all of
// ---------|----------------------------------|-------|-------------|-------------------------------------------------
// qkv      | qkv product -> attention         | r + 1 | r + 6       | x(r + 5): a block publishes it after attention
// partial  | other splits -> a head's split 0 | r + 1 | r + 6       | x(r + 5): the same
// attended | a head's split 0 -> out product  | r + 2 | r + 7       | x(r + 5): published after reading attended
// x        | out product -> MLP norm          | r + 3 | r + 5       | act(r + 4): published after reading x
// act      | gate and up -> down product      | r + 4 | r + 9       | x(r + 5): published after reading act
// x        | down product -> next norm        | r + 5 | r + 8       | attended(r + 7), made of all of qkv(r + 6), which
//          |                                  |       |             | is published after reading x
//
// "Published" means by every block: each owns part of x, qkv and act. A word of qkv, attended, x or act is overwritten
// 2 to 5 epochs later, so 8 bits distinguish new from old. The words of partial in use depend on the context's length,
// so they carry the full epoch beside the value.
//
// Waits time out. A thread that still polls TIMEOUT_MS after the launch began, by the device's clock, sets `stalled`
// and continues with the values it has; the others see the flag and continue too. So the launch ends with invalid
// results, and later launches return at once until the host clears the flag.

constexpr int THREADS = WARPS * 32;

struct LayerWeights {  // norms are bf16, matrices in their storage format
  const u16* attn_norm;
  const u8* qkv;
  const u16* qk_norm;
  const u8* out;
  const u16* mlp_norm;
  const u8 *gate_up, *down;
  u16* queries;     // of the heads to be kept, [n][max_seq_len][DIM]
  u64 query_heads;  // a bit for each of these n heads
};

struct SingleArgs {
  const LayerWeights* layers;
  const u16* x_in;
  const u8* head;
  const u16 *norm, *cos, *sin;
  u16 *keys, *values;         // of the first layer, [KV_HEADS][max_seq_len][DIM]; layers are layer_stride apart
  const long long* position;  // slot of this step's key and value
  float* logits;
  u32 *x, *qkv;  // x to act: exchanged between blocks
  u64* partial;
  u32 *attended, *act;
  u32 *epoch, *arrivals;  // last epoch of the previous launch; count of block arrivals over all launches
  u32* stalled;           // nonzero: a wait timed out
  long long layer_stride;
  int layer_count, max_seq_len;
};
static_assert(sizeof(SingleArgs) == SIZEOF_SingleArgs && sizeof(LayerWeights) == SIZEOF_LayerWeights,
              "single.py fills other structures");

__device__ __forceinline__ u32 ll_word(float v, u32 epoch) {  // rounds to nearest; NaN stays NaN
  return ((v != v ? ~0u : __float_as_uint(v) + 0x80u) & ~0xffu) | (epoch & 0xffu);
}
__device__ __forceinline__ u32 ll_word_bf16(float v, u32 epoch) { return pack(0.f, v) | (epoch & 0xffu); }
__device__ __forceinline__ float ll_value(u32 word) { return __uint_as_float(word & ~0xffu); }
__device__ __forceinline__ void publish(u32* to, u32 word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void publish(u64* to, float v, u32 epoch) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"((u64)epoch << 32 | __float_as_uint(v)) : "memory");
}

__device__ __forceinline__ u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u32 clock_ms() {  // in steps of 2^20 ns; wraps around
  u64 ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return (u32)(ns >> 20);
}

__device__ __forceinline__ u32& launch_began() {
  __shared__ u32 ms;
  return ms;
}

// State of one thread's wait, in one register. It never times out before MIN_POLLS, in case the GPU was suspended
// during a launch while its clock kept running.
constexpr u32 MIN_POLLS = POLLS_PER_CHECK * 64;
struct Wait { u32 polls = 0; };
__device__ __forceinline__ bool give_up(const SingleArgs& s, Wait& wait) {
  if (++wait.polls % POLLS_PER_CHECK) return false;
  const bool late = wait.polls >= MIN_POLLS && clock_ms() - launch_began() >= TIMEOUT_MS;
  if (!late && !load_relaxed(s.stalled)) return false;
  publish(s.stalled, 1);
  return true;
}

// Counting arrivals only delays polling, which would slow down the producers. It provides no ordering, and does not
// wait for the last STRAGGLERS blocks, whose values arrive while the others are being read.
constexpr int STRAGGLERS = 8;
__device__ __forceinline__ void arrive(const SingleArgs& s) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(s.arrivals) : "memory");
}
__device__ __forceinline__ void wait_arrivals(const SingleArgs& s, u32 epoch) {
  if (threadIdx.x == 0) {
    for (Wait w; (int)(load_relaxed(s.arrivals) + STRAGGLERS - epoch * BLOCKS) < 0 && !give_up(s, w);) {}
  }
  __syncthreads();
}

__device__ __forceinline__ uint4 poll(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
// Nonzero while any of the four words is from another epoch.
__device__ __forceinline__ u32 stale(uint4 w, u32 epoch) {
  return ((w.x ^ epoch) | (w.y ^ epoch) | (w.z ^ epoch) | (w.w ^ epoch)) & 0xffu;
}
// Receives four words of `epoch`, or their values. `words` were polled before.
__device__ __forceinline__ uint4 receive_words(const SingleArgs& s, uint4 words, const u32* from, u32 epoch) {
  for (Wait w; stale(words, epoch) && !give_up(s, w);) words = poll(from);
  return words;
}
__device__ __forceinline__ float4 receive(const SingleArgs& s, uint4 words, const u32* from, u32 epoch) {
  words = receive_words(s, words, from, epoch);
  return make_float4(ll_value(words.x), ll_value(words.y), ll_value(words.z), ll_value(words.w));
}
__device__ __forceinline__ float4 receive(const SingleArgs& s, const u32* from, u32 epoch) {
  return receive(s, poll(from), from, epoch);
}
// The thread index, opaque to the compiler. Otherwise, addresses derived from it would stay in registers across layers.
__device__ __forceinline__ int opaque_thread() { int t = threadIdx.x; asm volatile("" : "+r"(t)); return t; }
// The block's threads poll `count` groups of four words, with all of a thread's loads in flight at once. Indices past
// the end are clamped: a condition around a load costs registers, which spill.
template <int N>
__device__ __forceinline__ void poll_all(uint4 (&words)[N], const u32* from, int count) {
  const int t = opaque_thread();
#pragma unroll
  for (int j = 0; j < N; ++j) words[j] = poll(from + min(j * THREADS + t, count - 1) * 4);
}
