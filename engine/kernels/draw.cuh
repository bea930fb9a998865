// A codebook's code out of its logits, by one warp: bans, temperature, top-k, top-p, Gumbel noise, v2's second draw.
//
// A lane keeps its part of the logits in registers as integers that sort like the floats, and the thresholds of top-k
// and top-p are found by halving an interval of them: nothing is sorted.

typedef unsigned int u32;
typedef unsigned char u8;
typedef unsigned short u16;
typedef long long i64;

constexpr u32 ALL = ~0u;
constexpr int THREADS = BOOKS * 32;
constexpr int QUADS = (VOCAB + 3) / 4;         // a counter's four words serve codes q, q + QUADS, ...
constexpr int GROUPS = (QUADS + 31) / 32;      // quads of a lane: lane, lane + 32, ...
constexpr int WIDE = GROUPS * 4;               // codes of a lane; slot 4 * group + word
constexpr int NARROW = 4, LIST = NARROW * 32;  // few enough to be gathered into a short list
constexpr u32 DRAW = 0, REDRAW = 1 << 16;      // the draw and v2's second one

#if BF16
typedef u16 Weight;
typedef uint2 Four;
#else
typedef float Weight;
typedef float4 Four;
#endif

struct Front {
  const float *logits, *inverse_temperature, *noise_scale, *top_p, *repeat_limit;
  const i64 *top_k_index, *line, *keys_philox, *prompt_length, *row_limit;
  const u8 *ban, *window_mask;
  const Weight* embed;
  Weight* x;
  i64 *row, *rows, *history, *written, *position, *countdown;
  u8 *done, *ended;
  int context;
};

struct Row {  // of one block: what it needs from before this frame
  u32 written, line, key0, key1;
  int countdown;
  bool ban;
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

__device__ __forceinline__ float never() { return __uint_as_float(0xff800000u); }  // minus infinity

__device__ __forceinline__ int code_of(int slot) { return (slot & 3) * QUADS + (slot >> 2) * 32 + (int)lane_id(); }

// Logits of a codebook as keys, scaled and without the codes that may not be drawn.
__device__ __forceinline__ void load_keys(u32 (&key)[WIDE], const float* logits, float scale, bool no_begin,
                                          bool no_end) {
#pragma unroll
  for (int slot = 0; slot < WIDE; ++slot) {
    const int code = code_of(slot);
    const bool real = (slot >> 2) * 32 + (int)lane_id() < QUADS && code < VOCAB;
    float v = real ? __fadd_rn(__fmul_rn(logits[code], scale), 0.f) : 0.f;  // -0 becomes 0: they are equal
    if ((code == BOC && no_begin) || (code == EOC && no_end)) v = never();
    key[slot] = real ? to_key(v) : 0;
  }
}

template <int N>
__device__ __forceinline__ u32 greatest(const u32 (&key)[N]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) top = max(top, key[i]);
  return max_of(top);
}

// The lowest key that top-k keeps, ties with the k-th included. At least k keys lie above low, fewer above high.
__device__ __forceinline__ u32 top_k_floor(const u32 (&key)[WIDE], u32 k, u32 top) {
  u32 low = 0, high = top;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    u32 above = 0;
#pragma unroll
    for (int i = 0; i < WIDE; ++i) above += key[i] > middle;
    above = sum_of(above);
    if (above < k) high = middle;
    else low = middle;
    if (above == k) break;
  }
  return low + 1;
}

// The lowest key that top-p keeps of those from `floor` on: the mass strictly above it is less than p.
// The answer lies in (low, high]; where one key is left there, it is that key.
template <int N>
__device__ __forceinline__ u32 top_p_floor(const u32 (&key)[N], u32 floor, u32 top, float p) {
  float mass[N], all = 0.f;
  u32 above_low = 0, above_high = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    mass[i] = key[i] >= floor ? expf(to_value(key[i]) - to_value(top)) : 0.f;
    all += mass[i];
    above_low += key[i] >= floor;
  }
  const float enough = p * sum_of(all);
  above_low = sum_of(above_low);
  u32 low = floor - 1, high = top;
  while (high - low > 1 && above_low - above_high > 1) {
    const u32 middle = low + (high - low) / 2;
    float sum = 0.f;
    u32 above = 0;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (key[i] > middle) sum += mass[i], ++above;
    sum = sum_of(sum);
    above = sum_of(above);
    if (sum < enough) high = middle, above_high = above;
    else low = middle, above_low = above;
  }
  return low + 1;
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

__device__ __forceinline__ float gumbel(u32 word) {
  return -logf(-logf(__fmul_rn(__fadd_rn((float)(word >> 9), 0.5f), 0x1p-23f)));
}

struct Best {  // the highest score, and of equal ones the lowest code
  float score = never();
  int code = 0;

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

__device__ __forceinline__ float noisy(u32 key, u32 word, float scale) {
  return __fadd_rn(to_value(key), __fmul_rn(gumbel(word), scale));
}

// A draw among all keys from `floor` on.
__device__ __forceinline__ int draw_wide(const u32 (&key)[WIDE], u32 floor, const Row& row, int book, u32 stream,
                                         float scale) {
  Best best;
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    u32 word[4];
    philox(word, row, group * 32 + lane_id(), book, stream);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int slot = group * 4 + w;
      if (key[slot] >= floor) best.offer(noisy(key[slot], word[w], scale), code_of(slot));
    }
  }
  return best.of_warp();
}

// The same where few keys are left: they are gathered first, so that only they cost noise.
__device__ __forceinline__ int draw_narrow(const u32 (&key)[WIDE], u32 count, u32 floor, u32 top, float p,
                                           const Row& row, int book, float scale, uint2* list) {
  const int lane = lane_id();
  u32 before = count;  // how many the lanes up to this one have
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const u32 other = __shfl_up_sync(ALL, before, o);
    if (lane >= o) before += other;
  }
  const u32 total = __shfl_sync(ALL, before, 31);
  u32 at = before - count;
#pragma unroll
  for (int slot = 0; slot < WIDE; ++slot)
    if (key[slot] >= floor) list[at++] = make_uint2(key[slot], code_of(slot));
  __syncwarp();
  if (p < 1.f) {
    u32 few[NARROW];
#pragma unroll
    for (int i = 0; i < NARROW; ++i) few[i] = i * 32 + lane < total ? list[i * 32 + lane].x : 0;
    floor = top_p_floor(few, floor, top, p);
  }
  Best best;
#pragma unroll 1
  for (u32 place = lane; place < total; place += 32) {
    const u32 key = list[place].x, code = list[place].y, w = code / QUADS;
    if (key < floor) continue;
    u32 word[4];
    philox(word, row, code % QUADS, book, DRAW);
    best.offer(noisy(key, w < 2 ? (w ? word[1] : word[0]) : (w == 2 ? word[2] : word[3]), scale), code);
  }
  return best.of_warp();
}

__device__ __forceinline__ int draw(const Front& s, const Row& row, int b, int book, bool no_end, uint2* list) {
  u32 key[WIDE];
  const float p = s.top_p[b], scale = s.noise_scale[b];
  const i64 last = s.top_k_index[b * BOOKS + book];
  load_keys(key, s.logits + (i64)(b * BOOKS + book) * VOCAB, s.inverse_temperature[b], row.ban, no_end);
  const u32 top = greatest(key);
  u32 floor = last < VOCAB - 1 ? top_k_floor(key, (u32)last + 1, top) : 1;
  u32 count = 0;
#pragma unroll
  for (int i = 0; i < WIDE; ++i) count += key[i] >= floor;
  if (sum_of(count) <= LIST) return draw_narrow(key, count, floor, top, p, row, book, scale, list);
  if (p < 1.f) floor = top_p_floor(key, floor, top, p);
  return draw_wide(key, floor, row, book, DRAW, scale);
}

#if IS_V2
// A code seen too often in the window is drawn again, without temperature, top-k and top-p. `seen`: lane w's code of
// w frames into the window.
__device__ __forceinline__ int redraw(const Front& s, const Row& row, int b, int book, bool no_end, int code, int seen,
                                      bool counts) {
  const int repeats = __popc(__ballot_sync(ALL, counts && seen == code && seen < BOC));
  if ((float)repeats < s.repeat_limit[b]) return code;
  u32 key[WIDE];
  load_keys(key, s.logits + (i64)(b * BOOKS + book) * VOCAB, 1.f, row.ban, no_end);
  return draw_wide(key, 1, row, book, REDRAW, 1.f);
}
#endif
