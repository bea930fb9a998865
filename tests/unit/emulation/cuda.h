// Enough of CUDA to run a kernel on a CPU, every thread a fiber of its own. Slow, for tests.
//
// The kernel's source follows this file, then run.h. conftest.py replaces inline PTX and shared memory beforehand.
// BLOCK_THREADS, KERNEL and ARGUMENT are compiler options.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
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
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
inline float __fmul_rn(float a, float b) { return a * b; }  // contraction is off
inline float __fadd_rn(float a, float b) { return a + b; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __float2int_rn(float v) { return std::isfinite(v) ? (int)nearbyintf(v) : 0; }
inline unsigned atomicInc(unsigned* at, unsigned last) {  // no two fibers run at once
  const unsigned old = *at;
  *at = old >= last ? 0 : old + 1;
  return old;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned to = 0;
  for (int i = 0; i < 4; ++i) to |= (unsigned)(both >> (select >> 4 * i & 7) * 8 & 255) << 8 * i;
  return to;
}

namespace emulation {
inline int dp2a(unsigned x, unsigned w, int c) {  // two 16-bit integers with w's two low bytes, all of them signed
  for (int i = 0; i < 2; ++i, x >>= 16, w >>= 8) c += (short)x * (signed char)w;
  return c;
}
struct Index { unsigned x; };
struct Barrier { int arrived = 0, phase = 0; };
struct Block {
  Barrier all, warp[BLOCK_THREADS / 32];
  unsigned long long exchanged[2][BLOCK_THREADS];  // in turn: lanes may still read the last while the next is written
  std::vector<unsigned char> memory;  // poisoned, so that reads of uninitialised memory show
  unsigned char* shared(size_t at) {  // both aligned as bulk copies, wgmma's tiles and the widest loads need it
    return (unsigned char*)(((size_t)memory.data() + 1023) / 1024 * 1024) + (at + 127) / 128 * 128;
  }
};
using Position = void*[5];  // of __builtin_setjmp
struct Fiber {
  Position position;
  Index thread, block;
  bool started, done, odd;   // odd: it has taken part in an odd number of exchanges
  const Barrier* waits_for;  // not resumed until that leaves `phase`; or null
  int phase;
};
static Fiber* fiber;
static Block* blocks;  // that run now, from first_block on
static unsigned first_block;
static Index grid_size;
static Position scheduler;

inline Block& block() { return blocks[fiber->block.x - first_block]; }
// GCC's setjmp and longjmp, several times as fast as the library's, must stand in two functions.
[[gnu::noipa]] static void go_to(Position& position) { __builtin_longjmp(position, 1); }
[[gnu::noipa]] static void yield() {  // others change memory meanwhile
  if (__builtin_setjmp(fiber->position) == 0) go_to(scheduler);
}
inline void sync(Barrier& barrier, int threads) {
  const int phase = barrier.phase;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.phase;
    return;
  }
  fiber->waits_for = &barrier;
  fiber->phase = phase;
  yield();
}

inline void sync_warp() { sync(block().warp[fiber->thread.x / 32], 32); }

template <class T> struct Lanes {  // the values that a warp's lanes exchange
  const unsigned long long* values;
  T operator[](int lane) const { return bits<T>(values[lane]); }
};

// All lanes of a warp exchange a value; `take(values of the warp, lane)` computes a lane's result from them.
template <class T, class Take> T exchange(T v, Take take) {
  const unsigned lane = fiber->thread.x % 32, first = fiber->thread.x - lane;
  unsigned long long* const values = block().exchanged[fiber->odd];
  fiber->odd = !fiber->odd;
  values[fiber->thread.x] = bits<unsigned long long>(v);
  sync_warp();
  return take(Lanes<T>{values + first}, (int)lane);
}
}  // namespace emulation

#define threadIdx (emulation::fiber->thread)
#define blockIdx (emulation::fiber->block)
#define gridDim emulation::grid_size
inline void __syncthreads() { emulation::sync(emulation::block().all, BLOCK_THREADS); }
inline void __syncwarp() { emulation::sync_warp(); }

template <class T> T __shfl_sync(unsigned, T v, int from) {
  return emulation::exchange(v, [=](auto all, int) { return all[from & 31]; });
}
template <class T> T __shfl_xor_sync(unsigned, T v, int lanes) {
  return emulation::exchange(v, [=](auto all, int lane) { return all[lane ^ lanes]; });
}
template <class T> T __shfl_up_sync(unsigned, T v, int lanes) {
  return emulation::exchange(v, [=](auto all, int lane) { return all[lane < lanes ? lane : lane - lanes]; });
}
template <class T> T __shfl_down_sync(unsigned, T v, int lanes) {
  return emulation::exchange(v, [=](auto all, int lane) { return all[lane + lanes > 31 ? lane : lane + lanes]; });
}
inline unsigned __ballot_sync(unsigned, bool v) {
  return emulation::exchange((unsigned)v, [](auto all, int) {
    unsigned mask = 0;
    for (int i = 0; i < 32; ++i) mask |= all[i] << i;
    return mask;
  });
}
