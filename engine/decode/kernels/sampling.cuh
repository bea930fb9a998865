// A codebook's code out of its logits, by one warp: bans, temperature, top-k, top-p, Gumbel noise, v2's second draw.
//
// A lane keeps its part of the logits in registers as integers that sort like the floats. Nothing is sorted: the
// threshold of top-k or top-p is bracketed until few codes are left in the bracket, and those are held against each
// other. Where few codes are left above the bracket too, as with the usual top-k, all that follows is about them alone.

#include "bf16.cuh"

constexpr u32 ALL = ~0u;
constexpr int THREADS = BOOKS * 32;
constexpr int QUADS = (VOCAB + 3) / 4;         // a counter's four words serve codes q, q + QUADS, ...
constexpr int GROUPS = (QUADS + 31) / 32;      // quads of a lane: lane, lane + 32, ...
constexpr int WIDE = GROUPS * 4;               // codes of a lane; slot 4 * group + word
constexpr int FEW = 32, LIST = 128;            // codes left in a bracket; codes that a list holds
constexpr u32 DRAW = 0, REDRAW = 1 << 16;      // the draw and v2's second one

#if BF16
typedef u16 Weight;
typedef uint2 Four;
#else
typedef float Weight;
typedef float4 Four;
#endif

struct SampleArgs {
  const float *logits, *inverse_temperature, *noise_scale, *top_p, *repeat_limit;
  const i64 *top_k_index, *line, *keys_philox, *prompt_length, *row_limit;
  const u8 *ban, *window_mask;
  const Weight* embed;
  Weight* x;
  i64 *row, *rows, *history, *written, *position, *countdown;
  u8 *done, *ended, *finite;
  int context;
};

struct Row {  // of one block: what it needs from before this frame
  u32 written, line, key0, key1;
  int countdown, prompt_length, limit;
  bool ban, live;
};

struct __align__(16) List {  // of one warp: codes set apart, with room for a last read of four
  u32 key[LIST + 4];
  float mass[LIST + 4], above[LIST];
  u16 code[LIST];
};

struct Bracket {  // the threshold lies in (low, high]
  u32 low, high;
  u32 above_low, above_high;  // keys above either
  u32 mine_low, mine_high;    // and how many of them are this lane's
  float sum_high;             // their weight above high
};

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }

__device__ __forceinline__ u32 sum_of(u32 v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(ALL, v);
#else
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
  return v;
#endif
}

__device__ __forceinline__ u32 max_of(u32 v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(ALL, v);
#else
#pragma unroll
  for (int o = 16; o; o >>= 1) v = max(v, __shfl_xor_sync(ALL, v, o));
  return v;
#endif
}

__device__ __forceinline__ float sum_of(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL, v, o);
  return v;
}

// Integers in the floats' order. 0 stands below every number and marks an empty slot.
__device__ __forceinline__ u32 to_key(float v) {
  const u32 bits = __float_as_uint(v);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float to_value(u32 key) {
  return __uint_as_float(key ^ (~(u32)((int)key >> 31) | 0x80000000u));
}
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

__device__ __forceinline__ int code_of(int slot) { return (slot & 3) * QUADS + (slot >> 2) * 32 + (int)lane_id(); }
__device__ __forceinline__ float mass_of(u32 key, u32 top) { return expf(to_value(key) - to_value(top)); }

struct Logits {  // of one codebook, scaled and without the codes that may not be drawn
  const float* from;
  float scale;
  bool no_begin, no_end;

  __device__ __forceinline__ u32 key(int code) const {
    if ((code == BOC && no_begin) || (code == EOC && no_end)) return to_key(-infinity());
    return to_key(__fadd_rn(__fmul_rn(from[code], scale), 0.f));  // -0 becomes 0: they are equal
  }
};

// A key to try inside a bracket: in the middle of its values, or where that does not lead on, of its keys. At first 20
// below the highest, about where noise cannot lift a code to the top.
__device__ __forceinline__ u32 within(const Bracket& b, int step) {
  const float high = to_value(b.high);
  const u32 key = to_key(step == 0 ? high - 20.f : 0.5f * to_value(b.low) + 0.5f * high);
  return step < 16 && key > b.low && key < b.high ? key : b.low + (b.high - b.low) / 2;
}

// Closes in on the lowest key above which the weight is less than `target`. A key weighs its mass, or 1.
template <bool BY_MASS>
__device__ __forceinline__ void close_in(Bracket& b, const u32 (&key)[WIDE], const float (&mass)[WIDE], float target) {
  for (int step = 0; b.high - b.low > 1 && b.above_low - b.above_high > FEW; ++step) {
    const u32 middle = within(b, step);
    u32 mine = 0;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < WIDE; ++i)
      if (key[i] > middle) {
        ++mine;
        if (BY_MASS) sum += mass[i];
      }
    const u32 above = sum_of(mine);
    sum = BY_MASS ? sum_of(sum) : (float)above;
    if (sum < target) b.high = middle, b.above_high = above, b.mine_high = mine, b.sum_high = sum;
    else b.low = middle, b.above_low = above, b.mine_low = mine;
  }
}

// Lists the keys in (low, high], `count` in all and `mine` of them this lane's, with their masses.
__device__ __forceinline__ void gather(List& list, const u32 (&key)[WIDE], u32 low, u32 high, u32 mine, u32 count,
                                       u32 top) {
  const u32 lane = lane_id();
  u32 end = mine;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const u32 before = __shfl_up_sync(ALL, end, o);
    if (lane >= o) end += before;
  }
  u32 at = end - mine;
  __syncwarp();  // nobody reads the list's former content any more
#pragma unroll
  for (int slot = 0; slot < WIDE; ++slot)
    if (key[slot] > low && key[slot] <= high) list.key[at] = key[slot], list.code[at++] = code_of(slot);
  if (lane < 4) list.key[count + lane] = 0, list.mass[count + lane] = 0.f;
  __syncwarp();
  for (u32 i = lane; i < count; i += 32) list.mass[i] = mass_of(list.key[i], top);
  __syncwarp();
}

struct Above { u32 count; float mass; };

// What lies above a key in a list.
__device__ __forceinline__ Above above(const List& list, u32 count, u32 key) {
  Above sum = {0, 0.f};
#pragma unroll 2
  for (u32 at = 0; at < count; at += 4) {
    const uint4 keys = *(const uint4*)(list.key + at);
    const float4 mass = *(const float4*)(list.mass + at);
    if (keys.x > key) ++sum.count, sum.mass += mass.x;
    if (keys.y > key) ++sum.count, sum.mass += mass.y;
    if (keys.z > key) ++sum.count, sum.mass += mass.z;
    if (keys.w > key) ++sum.count, sum.mass += mass.w;
  }
  return sum;
}

// The lowest key above which the weight is less than `target`, once the bracket is closed in.
template <bool BY_MASS>
__device__ __forceinline__ u32 resolve(const Bracket& b, const u32 (&key)[WIDE], float target, u32 top, List& list) {
  if (b.high - b.low <= 1) return b.high;  // all that is left is equal
  const u32 count = b.above_low - b.above_high, lane = lane_id();
  gather(list, key, b.low, b.high, b.mine_low - b.mine_high, count, top);
  const u32 own = lane < count ? list.key[lane] : 0;
  const Above more = above(list, count, own);
  const bool kept = lane < count && b.sum_high + (BY_MASS ? more.mass : (float)more.count) < target;
  return ~max_of(kept ? ~own : 0);
}

// Philox 4x32-10: the four words of a counter.
__device__ __forceinline__ void philox(u32 (&word)[4], const Row& row, u32 quad, u32 book, u32 stream) {
  u32 a = quad, b = book + stream, c = row.written, d = row.line, key0 = row.key0, key1 = row.key1;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = __umulhi(0xD2511F53u, a), low0 = 0xD2511F53u * a;
    const u32 high1 = __umulhi(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
    a = high1 ^ b ^ key0, b = low1, c = high0 ^ d ^ key1, d = low0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  word[0] = a, word[1] = b, word[2] = c, word[3] = d;
}

__device__ __forceinline__ float noisy(u32 key, u32 word, float scale) {
  const float gumbel = -logf(-logf(__fmul_rn(__fadd_rn((float)(word >> 9), 0.5f), 0x1p-23f)));
  return __fadd_rn(to_value(key), __fmul_rn(gumbel, scale));
}

struct Best {  // the highest score, and of equal ones the lowest code
  float score;
  int code;

  __device__ __forceinline__ void offer(float other, int name) {
    if (other > score || (other == score && name < code)) score = other, code = name;
  }
  __device__ __forceinline__ int of_warp() {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const float other = __shfl_xor_sync(ALL, score, o);
      offer(other, __shfl_xor_sync(ALL, code, o));
    }
    return code;
  }
};

// A draw among the keys from `floor` on.
__device__ __forceinline__ int draw_wide(const Logits& logits, u32 floor, const Row& row, int book, u32 stream,
                                         float scale) {
  Best best = {-infinity(), 0};
#pragma unroll 1
  for (int quad = lane_id(); quad < QUADS; quad += 32) {
    u32 word[4];
    philox(word, row, quad, book, stream);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int code = w * QUADS + quad;
      const u32 key = code < VOCAB ? logits.key(code) : 0;
      if (key >= floor) best.offer(noisy(key, word[w], scale), code);
    }
  }
  return best.of_warp();
}

// Top-k, top-p and the draw where few keys lie above the bracket's low end: only they cost noise.
__device__ __forceinline__ int draw_narrow(const Bracket& b, const u32 (&key)[WIDE], u32 k, float p, u32 top,
                                           const Row& row, int book, float scale, List& list) {
  const u32 count = b.above_low, lane = lane_id();
  gather(list, key, b.low, ALL, b.mine_low, count, top);
  float all = 0.f;
  for (u32 i = lane; i < count; i += 32) {
    const Above more = above(list, count, list.key[i]);
    if (more.count < k) all += list.mass[i];
    list.above[i] = more.count < k ? more.mass : infinity();
  }
  all = sum_of(all);
  const float enough = p < 1.f ? p * all : infinity();
  Best best = {-infinity(), 0};
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) {
    if (!(list.above[i] < enough)) continue;
    u32 word[4];
    const u32 code = list.code[i], w = code / QUADS;
    philox(word, row, code % QUADS, book, DRAW);
    best.offer(noisy(list.key[i], w < 2 ? (w ? word[1] : word[0]) : (w == 2 ? word[2] : word[3]), scale), code);
  }
  return best.of_warp();
}

// The codes that top-k and top-p leave, and one of them.
__device__ __forceinline__ int draw(const SampleArgs& s, const Row& row, int b, int book, const Logits& logits, List& list) {
  const float p = s.top_p[b], scale = s.noise_scale[b];
  const u32 k = (u32)min(s.top_k_index[b * BOOKS + book], (i64)VOCAB - 1) + 1;
  u32 key[WIDE], top = 0, real = 0;
  float mass[WIDE] = {}, zero = 0.f;
#pragma unroll
  for (int i = 0; i < WIDE; ++i) {
    const int code = code_of(i);
    const bool there = (i >> 2) * 32 + (int)lane_id() < QUADS && code < VOCAB;
    key[i] = there ? logits.key(code) : 0;
    zero = fmaf(there ? logits.from[code] : 0.f, 0.f, zero);  // NaN where a logit is NaN or an infinity
    top = max(top, key[i]), real += key[i] > 0;
  }
  if (row.live && zero != 0.f) s.finite[b] = 0;
  top = max_of(top);
  Bracket bracket = {0, top, sum_of(real), 0, real, 0, 0.f};
  u32 floor = 1;
  if (k < VOCAB) {
    close_in<false>(bracket, key, mass, (float)k);
    if (bracket.above_low <= LIST) return draw_narrow(bracket, key, k, p, top, row, book, scale, list);
    floor = resolve<false>(bracket, key, (float)k, top, list);
  }
  if (p < 1.f) {
    float all = 0.f;
    u32 mine = 0;
#pragma unroll
    for (int i = 0; i < WIDE; ++i)
      if (key[i] >= floor) mass[i] = mass_of(key[i], top), all += mass[i], ++mine;
    const float enough = p * sum_of(all);
    bracket = {floor - 1, top, sum_of(mine), 0, mine, 0, 0.f};
    close_in<true>(bracket, key, mass, enough);
    floor = resolve<true>(bracket, key, enough, top, list);
  }
  return draw_wide(logits, floor, row, book, DRAW, scale);
}
