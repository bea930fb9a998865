// Samples a codebook's code from its logits with one warp: suppression, temperature, top-k, top-p, Gumbel noise.
//
// A lane keeps its logits in registers as integers that sort like the floats. There is no sort: the threshold of top-k
// or top-p is bisected until few codes are left in its bracket, and those are compared with each other. If few codes
// are left above the bracket too, as with typical top-k, only they are processed from then on.

#include "bf16.cuh"

constexpr u32 ALL = ~0u;
constexpr int QUADS = (VOCAB + 3) / 4;         // the four words of a Philox counter serve codes q, q + QUADS, ...
constexpr int GROUPS = (QUADS + 31) / 32;      // quads per lane: lane, lane + 32, ...
constexpr int WIDE = GROUPS * 4;               // keys per lane; entry 4 * group + word
constexpr int MAX_BRACKET = 32, MAX_CANDIDATES = 128;            // codes in a closed bracket; codes of `Candidates`
constexpr u32 WEYL0 = 0x9E3779B9u, WEYL1 = 0xBB67AE85u;         // added to Philox's keys each round
constexpr u32 SAMPLE = 0, RESAMPLE = NOISE_STREAM;  // Philox streams for the sample and for v2's resample

#if BF16
typedef u16 Weight;
typedef uint2 Four;
#else
typedef float Weight;
typedef float4 Four;
#endif

struct SampleArgs {
  float *logits, *inverse_temperature, *noise_scale, *top_p, *repeat_limit;
  i64 *top_k_index, *sequence_index, *round_keys, *prompt_length, *max_generated;
  u8 *suppress_specials, *window_mask;
  Weight *embed, *x;
  i64 *output, *outputs, *history, *num_generated, *position, *countdown;
  u8 *done, *ended, *finite;
  int max_seq_len;
};
static_assert(sizeof(SampleArgs) == SIZEOF_SampleArgs && THREADS == CODEBOOKS * 32, "sample.py fits another kernel");

struct Row {  // state of a batch row before this frame
  u32 num_generated, sequence, key0, key1;
  int countdown, prompt_length, limit;
  bool suppress, live;
};

struct __align__(16) Candidates {  // of one warp; padded for reads of four past the end
  u32 key[MAX_CANDIDATES + 4];
  float mass[MAX_CANDIDATES + 4], above[MAX_CANDIDATES];
  u16 code[MAX_CANDIDATES];
};

struct Bracket {  // the threshold lies in (low, high]
  u32 low, high;
  u32 above_low, above_high;  // number of keys above low, above high
  u32 mine_low, mine_high;    // this lane's share of these
  float sum_high;             // weight of the keys above high
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

// Integers in the order of the floats. 0 is below every number and marks an empty entry.
__device__ __forceinline__ u32 to_key(float v) {
  const u32 bits = __float_as_uint(v);
  return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float to_value(u32 key) {
  return __uint_as_float(key ^ (~(u32)((int)key >> 31) | 0x80000000u));
}
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

__device__ __forceinline__ int code_of(int entry) { return (entry & 3) * QUADS + (entry >> 2) * 32 + (int)lane_id(); }
__device__ __forceinline__ float mass_of(u32 key, u32 top) { return expf(to_value(key) - to_value(top)); }

struct Logits {  // of one codebook, scaled, with suppressed codes at -inf
  const float* from;
  float scale;
  bool suppress_boc, suppress_eoc;

  __device__ __forceinline__ u32 key(int code) const {
    if ((code == BOC && suppress_boc) || (code == EOC && suppress_eoc)) return to_key(-infinity());
    return to_key(__fadd_rn(__fmul_rn(from[code], scale), 0.f));  // -0 becomes 0, since they are equal
  }
};

// Next key to try inside a bracket: the middle of its values or, if that does not converge, of its keys. The first is
// 20 below the highest logit, about where noise no longer lifts a code to the top.
__device__ __forceinline__ u32 within(const Bracket& b, int step) {
  const float high = to_value(b.high);
  const u32 key = to_key(step == 0 ? high - 20.f : 0.5f * to_value(b.low) + 0.5f * high);
  return step < 16 && key > b.low && key < b.high ? key : b.low + (b.high - b.low) / 2;
}

// Narrows the bracket of the lowest key above which the weight is less than `target`. A key's weight is its mass or 1.
template <bool BY_MASS>
__device__ __forceinline__ void close_in(Bracket& b, const u32 (&key)[WIDE], const float (&mass)[WIDE], float target) {
  for (int step = 0; b.high - b.low > 1 && b.above_low - b.above_high > MAX_BRACKET; ++step) {
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

// Collects the keys in (low, high] with their masses: `count` in total, `mine` on this lane.
__device__ __forceinline__ void gather(Candidates& list, const u32 (&key)[WIDE], u32 low, u32 high, u32 mine, u32 count,
                                       u32 top) {
  const u32 lane = lane_id();
  u32 end = mine;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const u32 before = __shfl_up_sync(ALL, end, o);
    if (lane >= o) end += before;
  }
  u32 at = end - mine;
  __syncwarp();  // all lanes are done with the previous contents
#pragma unroll
  for (int i = 0; i < WIDE; ++i)
    if (key[i] > low && key[i] <= high) list.key[at] = key[i], list.code[at++] = code_of(i);
  if (lane < 4) list.key[count + lane] = 0, list.mass[count + lane] = 0.f;
  __syncwarp();
  for (u32 i = lane; i < count; i += 32) list.mass[i] = mass_of(list.key[i], top);
  __syncwarp();
}

struct Above { u32 count; float mass; };

// The candidates above a key.
__device__ __forceinline__ Above above(const Candidates& list, u32 count, u32 key) {
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

// The lowest key above which the weight is less than `target`, from a narrowed bracket.
template <bool BY_MASS>
__device__ __forceinline__ u32 resolve(const Bracket& b, const u32 (&key)[WIDE], float target, u32 top,
                                       Candidates& list) {
  if (b.high - b.low <= 1) return b.high;  // all remaining keys are equal
  const u32 count = b.above_low - b.above_high, lane = lane_id();
  gather(list, key, b.low, b.high, b.mine_low - b.mine_high, count, top);
  const u32 own = lane < count ? list.key[lane] : 0;
  const Above more = above(list, count, own);
  const bool kept = lane < count && b.sum_high + (BY_MASS ? more.mass : (float)more.count) < target;
  return ~max_of(kept ? ~own : 0);
}

// Philox 4x32-10: returns the four words of a counter.
__device__ __forceinline__ void philox(u32 (&word)[4], const Row& row, u32 quad, u32 codebook, u32 stream) {
  u32 a = quad, b = codebook + stream, c = row.num_generated, d = row.sequence, key0 = row.key0, key1 = row.key1;
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    const u32 high0 = __umulhi(0xD2511F53u, a), low0 = 0xD2511F53u * a;
    const u32 high1 = __umulhi(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
    a = high1 ^ b ^ key0, b = low1, c = high0 ^ d ^ key1, d = low0;
    key0 += WEYL0, key1 += WEYL1;
  }
  word[0] = a, word[1] = b, word[2] = c, word[3] = d;
}

__device__ __forceinline__ float noisy(u32 key, u32 word, float scale) {
  const float gumbel = -logf(-logf(__fmul_rn(__fadd_rn((float)(word >> 9), 0.5f), 0x1p-23f)));
  return __fadd_rn(to_value(key), __fmul_rn(gumbel, scale));
}

struct Best {  // highest score; ties go to the lowest code
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

// Samples from all keys >= floor.
__device__ __forceinline__ int sample_wide(const Logits& logits, u32 floor, const Row& row, int codebook, u32 stream,
                                         float scale) {
  Best best = {-infinity(), 0};
#pragma unroll 1
  for (int quad = lane_id(); quad < QUADS; quad += 32) {
    u32 word[4];
    philox(word, row, quad, codebook, stream);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int code = w * QUADS + quad;
      const u32 key = code < VOCAB ? logits.key(code) : 0;
      if (key >= floor) best.offer(noisy(key, word[w], scale), code);
    }
  }
  return best.of_warp();
}

// Top-k, top-p and sampling if few keys are above the bracket's low end. Only these keys need noise.
__device__ __forceinline__ int sample_narrow(const Bracket& b, const u32 (&key)[WIDE], u32 k, float p, u32 top,
                                           const Row& row, int codebook, float scale, Candidates& list) {
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
    philox(word, row, code % QUADS, codebook, SAMPLE);
    best.offer(noisy(list.key[i], w < 2 ? (w ? word[1] : word[0]) : (w == 2 ? word[2] : word[3]), scale), code);
  }
  return best.of_warp();
}

// Applies top-k and top-p, and samples one of the remaining codes.
__device__ __forceinline__ int sample_code(const SampleArgs& s, const Row& row, int b, int codebook,
                                           const Logits& logits, Candidates& list) {
  const float p = s.top_p[b], scale = s.noise_scale[b];
  const u32 k = (u32)min(s.top_k_index[b * CODEBOOKS + codebook], (i64)VOCAB - 1) + 1;
  u32 key[WIDE], top = 0, real = 0;
  float mass[WIDE] = {}, zero = 0.f;
#pragma unroll
  for (int i = 0; i < WIDE; ++i) {
    const int code = code_of(i);
    const bool there = (i >> 2) * 32 + (int)lane_id() < QUADS && code < VOCAB;
    key[i] = there ? logits.key(code) : 0;
    zero = fmaf(there ? logits.from[code] : 0.f, 0.f, zero);  // NaN if a logit is NaN or infinity
    top = max(top, key[i]), real += key[i] > 0;
  }
  if (row.live && zero != 0.f) s.finite[b] = 0;
  top = max_of(top);
  Bracket bracket = {0, top, sum_of(real), 0, real, 0, 0.f};
  u32 floor = 1;
  if (k < VOCAB) {
    close_in<false>(bracket, key, mass, (float)k);
    if (bracket.above_low <= MAX_CANDIDATES) return sample_narrow(bracket, key, k, p, top, row, codebook, scale, list);
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
  return sample_wide(logits, floor, row, codebook, SAMPLE, scale);
}
