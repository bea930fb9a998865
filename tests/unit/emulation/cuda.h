// Enough of CUDA to run a kernel on a CPU, every thread a fiber of its own. Slow, for tests.
//
// The kernel's source follows this file, then run.h. Inline PTX and shared memory are replaced before; see conftest.py.
// BLOCK_THREADS, KERNEL and ARGUMENT are compiler options.

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
namespace emulation {
template <class To, class From> To bits(From v) {
  To to{};
  memcpy(&to, &v, std::min(sizeof to, sizeof v));
  return to;
}
}  // namespace emulation
inline unsigned __float_as_uint(float v) { return emulation::bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return emulation::bits<float>(v); }
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
inline float __fmul_rn(float a, float b) { return a * b; }  // contraction is off
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline unsigned atomicInc(unsigned* at, unsigned last) {  // no two fibers run at once
  const unsigned old = *at;
  *at = old >= last ? 0 : old + 1;
  return old;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned to = 0;
  for (int i = 0; i < 4; ++i) to |= (unsigned)(both >> (select >> 4 * i & 7) * 8 & 255) << 8 * i;
  return to;
}

namespace emulation {
struct Index { unsigned x; };
struct Meeting { int here = 0, round = 0; };
struct Block {
  Meeting all, warp[BLOCK_THREADS / 32];
  unsigned long long handed[BLOCK_THREADS];
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
static Index grid_size;
static jmp_buf home;

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

inline void meet_warp() { meet(block().warp[fiber->thread.x / 32], 32); }

// All lanes of a warp hand each other a value; `take(values of the warp, lane)` makes the result of them.
template <class T, class Take> T exchange(T v, Take take) {
  const unsigned lane = fiber->thread.x % 32, first = fiber->thread.x - lane;
  block().handed[fiber->thread.x] = bits<unsigned long long>(v);
  meet_warp();
  T all[32];
  for (int i = 0; i < 32; ++i) all[i] = bits<T>(block().handed[first + i]);
  meet_warp();
  return take(all, (int)lane);
}
}  // namespace emulation

#define threadIdx (emulation::fiber->thread)
#define blockIdx (emulation::fiber->block)
#define gridDim emulation::grid_size
inline void __syncthreads() { emulation::meet(emulation::block().all, BLOCK_THREADS); }
inline void __syncwarp() { emulation::meet_warp(); }

template <class T> T __shfl_sync(unsigned, T v, int from) {
  return emulation::exchange(v, [=](T* all, int) { return all[from & 31]; });
}
template <class T> T __shfl_xor_sync(unsigned, T v, int lanes) {
  return emulation::exchange(v, [=](T* all, int lane) { return all[lane ^ lanes]; });
}
template <class T> T __shfl_up_sync(unsigned, T v, int lanes) {
  return emulation::exchange(v, [=](T* all, int lane) { return all[lane < lanes ? lane : lane - lanes]; });
}
template <class T> T __shfl_down_sync(unsigned, T v, int lanes) {
  return emulation::exchange(v, [=](T* all, int lane) { return all[lane + lanes > 31 ? lane : lane + lanes]; });
}
inline unsigned __ballot_sync(unsigned, bool v) {
  return emulation::exchange((unsigned)v, [](unsigned* all, int) {
    unsigned mask = 0;
    for (int i = 0; i < 32; ++i) mask |= all[i] << i;
    return mask;
  });
}
