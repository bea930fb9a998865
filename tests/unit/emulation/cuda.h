// Enough of CUDA to run a cooperative kernel on a CPU, every thread a fiber of its own. Slow, for tests.
//
// The kernel's source follows this file, then run.h. Its inline PTX is replaced by the test before.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 750

using std::max;
using std::min;
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline float2 make_float2(float a, float b) { return {a, b}; }
template <class To, class From> To bits(From v) { To to; memcpy(&to, &v, sizeof to); return to; }
inline unsigned __float_as_uint(float v) { return bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return bits<float>(v); }
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned to = 0;
  for (int i = 0; i < 4; ++i) to |= (unsigned)(both >> (select >> 4 * i & 7) * 8 & 255) << 8 * i;
  return to;
}

constexpr int BLOCK_THREADS = 512, SHARED_BYTES = 256 << 10;
struct Index { unsigned x; };
struct Meeting { int here = 0, round = 0; };
struct Block {
  Meeting all, warp[BLOCK_THREADS / 32];
  float handed[BLOCK_THREADS];
  std::vector<unsigned char> memory;  // poisoned: what is read before it is written is seen
  unsigned char* shared(size_t at) {  // both rounded up to what bulk copies and the widest loads want
    return (unsigned char*)(((size_t)memory.data() + 127) / 128 * 128) + (at + 127) / 128 * 128;
  }
};
struct Fiber {
  ucontext_t context;  // where it begins
  jmp_buf place;       // where it is since: _setjmp makes no system call
  Index thread, block;
  bool begun, done;
};
static Fiber* fiber;
static Block* blocks;
static jmp_buf home;
#define threadIdx (fiber->thread)
#define blockIdx (fiber->block)

inline Block& block() { return blocks[fiber->block.x]; }
inline void look_again() {
  if (_setjmp(fiber->place) == 0) _longjmp(home, 1);
}
inline void go_on() {
  if (_setjmp(home)) return;
  if (fiber->begun) _longjmp(fiber->place, 1);
  fiber->begun = true;
  setcontext(&fiber->context);
}
inline void meet(Meeting& meeting, int threads) {
  const int round = meeting.round;
  if (++meeting.here == threads) { meeting.here = 0; ++meeting.round; }
  while (meeting.round == round) look_again();
}
inline void __syncthreads() { meet(block().all, BLOCK_THREADS); }
inline void __syncwarp() { meet(block().warp[threadIdx.x / 32], 32); }
inline float __shfl_xor_sync(unsigned, float v, int lanes) {
  block().handed[threadIdx.x] = v;
  __syncwarp();
  const float other = block().handed[threadIdx.x ^ lanes];
  __syncwarp();
  return other;
}
