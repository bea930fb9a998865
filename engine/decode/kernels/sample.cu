// Samples one frame for every row of the batch, from logits to talker input: codes, delay pattern and EOC countdown,
// counters, and the sum of the codes' embeddings. One block per row, one warp per codebook. Clears `finite` for live
// rows whose logits contain NaN or infinity.
//
// Compile-time: CODEBOOKS, VOCAB, BOC, EOC, HIDDEN, WINDOW (v2's repeat window), ENDS_ON_ANY_CODEBOOK and
// RESAMPLES_REPEATS (v2's rules), BF16 (else weights are fp32), THREADS per block, ROUNDS and NOISE_STREAM of Philox.

#include "sampling.cuh"

// Applies the delay pattern's BOC ramp and the family's EOC rule. Lane c holds the code of codebook c. Every warp
// computes this redundantly. Returns the EOC countdown after this frame.
__device__ __forceinline__ int delay_machine(int& code, const Row& row) {
  const int lane = lane_id();
  const bool ramp = row.countdown >= 0;
  if (lane > (int)row.num_generated) code = BOC;
  const u32 ends = __ballot_sync(ALL, lane < CODEBOOKS && code == EOC);
#if ENDS_ON_ANY_CODEBOOK
  const int first = ends ? __ffs(ends) - 1 : CODEBOOKS;
  if (lane < (ramp ? CODEBOOKS - row.countdown : ends ? first : 0)) code = EOC;
  const bool found = ends != 0;
  const int start = CODEBOOKS - 1 - first;
#else
  const bool found = (ends & 1) && row.num_generated >= CODEBOOKS;
  const int start = CODEBOOKS - 2;
#endif
  return ramp ? row.countdown - 1 : found ? start : -1;
}

// Writes the codes, and advances a live row by one frame. Called by one warp.
__device__ __forceinline__ void emit(const SampleArgs& s, const Row& row, int b, int code, int countdown) {
  const int lane = lane_id();
  if (lane < CODEBOOKS) {
    const i64 at = min((int)row.num_generated, s.max_seq_len);
    s.output[b * CODEBOOKS + lane] = code;
    s.outputs[((i64)b * (s.max_seq_len + 1) + at) * CODEBOOKS + lane] = code;
  }
  if (lane == 0) {
    const bool last = row.live && countdown == 0;
    const int generated = (int)row.num_generated + row.live;
    s.position[b] = min(row.prompt_length + (int)row.num_generated, s.max_seq_len - 1);
    s.num_generated[b] = generated;
    s.countdown[b] = countdown;
    if (last) s.ended[b] = 1;
    s.done[b] = !row.live || last || generated >= row.limit;
  }
}

#if BF16
__device__ __forceinline__ float4 widen(uint2 v) { return unpack4(v); }
__device__ __forceinline__ uint2 narrowed(float4 v) { return pack4(v); }
#else
__device__ __forceinline__ float4 widen(float4 v) { return v; }
__device__ __forceinline__ float4 narrowed(float4 v) { return v; }
#endif

__device__ __forceinline__ void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// x = the sum of the codes' embeddings, in torch's order of summation. Called by all threads.
__device__ __forceinline__ void embed(const SampleArgs& s, int b, int code) {
  const Weight* from[CODEBOOKS];
#pragma unroll
  for (int c = 0; c < CODEBOOKS; ++c) from[c] = s.embed + (i64)(c * VOCAB + __shfl_sync(ALL, code, c)) * HIDDEN;
#pragma unroll
  for (int at = 0; at < HIDDEN; at += THREADS * 4) {
    const int column = at + threadIdx.x * 4;
    if (column >= HIDDEN) break;
    Four term[CODEBOOKS];
    float4 sum[4] = {};
#pragma unroll
    for (int c = 0; c < CODEBOOKS; ++c) term[c] = *(const Four*)(from[c] + column);
#pragma unroll
    for (int c = 0; c < CODEBOOKS; ++c) add(sum[c & 3], widen(term[c]));
#pragma unroll
    for (int i = 1; i < 4; ++i) add(sum[0], sum[i]);
    *(Four*)(s.x + (i64)b * HIDDEN + column) = narrowed(sum[0]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_step(const SampleArgs s) {
  __shared__ Candidates lists[CODEBOOKS];
  __shared__ int codes[CODEBOOKS];
  const int b = blockIdx.x, codebook = threadIdx.x >> 5, lane = lane_id();
  const i64* const seed = s.round_keys + (i64)b * (ROUNDS * 2);  // keys of all rounds; the first determines the others
  const Row row = {(u32)s.num_generated[b], (u32)s.sequence_index[b], (u32)seed[0],
                   (u32)seed[1],            (int)s.countdown[b],      (int)s.prompt_length[b],
                   (int)s.max_generated[b], s.suppress_specials[b] != 0, !s.done[b]};
  // During speech, EOC is allowed only on codebook 0, and with v3 only once its end rule applies.
  const bool suppress_eoc =
      row.suppress && row.countdown < 0 && (codebook > 0 || (!ENDS_ON_ANY_CODEBOOK && row.num_generated < CODEBOOKS));
  Logits logits = {s.logits + (i64)(b * CODEBOOKS + codebook) * VOCAB, s.inverse_temperature[b], row.suppress,
                   suppress_eoc};
#if RESAMPLES_REPEATS
  const int place = min(lane, WINDOW - 1);  // lane w holds code w of the window, oldest first
  i64* const window = s.history + ((i64)b * WINDOW + place) * CODEBOOKS + codebook;
  const int seen = (int)*window;
  const bool counts = lane < WINDOW && seen < BOC && s.window_mask[b * WINDOW + place];
  const float limit = s.repeat_limit[b];
#endif
  int code = sample_code(s, row, b, codebook, logits, lists[codebook]);
#if RESAMPLES_REPEATS
  if ((float)__popc(__ballot_sync(ALL, counts && seen == code)) >= limit) {
    logits.scale = 1.f;  // repeated too often: resample without temperature, top-k and top-p
    code = sample_wide(logits, 1, row, codebook, RESAMPLE, 1.f);
  }
#endif
  if (lane == 0) codes[codebook] = code;
  __syncthreads();  // the row's state may be overwritten from here on
  code = codes[min(lane, CODEBOOKS - 1)];
  const int countdown = delay_machine(code, row);
  if (codebook == 0) emit(s, row, b, code, countdown);
#if RESAMPLES_REPEATS
  const int newest = __shfl_sync(ALL, code, codebook), next = __shfl_down_sync(ALL, seen, 1);
  if (lane < WINDOW) *window = lane == WINDOW - 1 ? newest : next;
#endif
  embed(s, b, code);
}

struct StartArgs {
  SampleArgs state;
  float inverse_temperature, noise_scale, top_p;
  int suppress_specials;
  i64 top_k_index, sequence_index, prompt_length, max_generated, row;
  u64 seed;
};
static_assert(sizeof(StartArgs) == SIZEOF_StartArgs, "sample.py fills another structure");

// Prepares a row for a sequence's first step. One block, so that the host passes one launch instead of many copies.
extern "C" __global__ void __launch_bounds__(THREADS) start_row(const StartArgs a) {
  const SampleArgs& s = a.state;
  const i64 b = a.row;
  const u32 i = threadIdx.x;
  if (i < CODEBOOKS) {
    s.output[b * CODEBOOKS + i] = BOC;
    s.top_k_index[b * CODEBOOKS + i] = a.top_k_index;
  }
  if (i < ROUNDS) {
    i64* keys = s.round_keys + (b * ROUNDS + i) * 2;
    keys[0] = (u32)a.seed + i * WEYL0;
    keys[1] = (u32)(a.seed >> 32) + i * WEYL1;
  }
  if (i) return;
  s.prompt_length[b] = s.position[b] = a.prompt_length;
  s.num_generated[b] = 0;
  s.max_generated[b] = a.max_generated;
  s.countdown[b] = -1;
  s.done[b] = a.max_generated <= 0;
  s.ended[b] = 0;
  s.inverse_temperature[b] = a.inverse_temperature;
  s.noise_scale[b] = a.noise_scale;
  s.top_p[b] = a.top_p;
  s.suppress_specials[b] = a.suppress_specials;
  s.sequence_index[b] = a.sequence_index;
  s.finite[b] = 1;
}
