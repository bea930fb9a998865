// One frame for every row, from the logits to the talker's input: the codes, the delay and end machine, the row's place
// in the output, and the sum of its codes' embeddings. One block a row, one warp a codebook. A live row whose logits
// hold NaN or an infinity loses its flag `finite`.
//
// Compile-time: BOOKS, VOCAB, BOC, EOC, HIDDEN, WINDOW (v2's repeat window), IS_V2, and BF16, else weights are fp32.

#include "sampling.cuh"

// The delay pattern's begin and the family's end; lane c has codebook c's code. Every warp does it for itself.
// Returns the countdown after this frame.
__device__ __forceinline__ int machine(int& code, const Row& row) {
  const int lane = lane_id();
  const bool ramp = row.countdown >= 0;
  if (lane > (int)row.written) code = BOC;
  const u32 ends = __ballot_sync(ALL, lane < BOOKS && code == EOC);
#if IS_V2
  const int first = ends ? __ffs(ends) - 1 : BOOKS;
  if (lane < (ramp ? BOOKS - row.countdown : ends ? first : 0)) code = EOC;
  const bool found = ends != 0;
  const int start = BOOKS - 1 - first;
#else
  const bool found = (ends & 1) && row.written >= BOOKS;
  const int start = BOOKS - 2;
#endif
  return ramp ? row.countdown - 1 : found ? start : -1;
}

// Writes the row out and moves a live row on by one. By one warp.
__device__ __forceinline__ void emit(const SampleArgs& s, const Row& row, int b, int code, int countdown) {
  const int lane = lane_id();
  if (lane < BOOKS) {
    const i64 slot = min((int)row.written, s.context);
    s.row[b * BOOKS + lane] = code;
    s.rows[((i64)b * (s.context + 1) + slot) * BOOKS + lane] = code;
  }
  if (lane == 0) {
    const bool last = row.live && countdown == 0;
    const int written = (int)row.written + row.live;
    s.position[b] = min(row.prompt_length + (int)row.written, s.context - 1);
    s.written[b] = written;
    s.countdown[b] = countdown;
    if (last) s.ended[b] = 1;
    s.done[b] = !row.live || last || written >= row.limit;
  }
}

#if BF16
__device__ __forceinline__ float4 widen(uint2 v) { return make_float4(low(v.x), high(v.x), low(v.y), high(v.y)); }
__device__ __forceinline__ uint2 narrowed(float4 v) { return make_uint2(pack(v.x, v.y), pack(v.z, v.w)); }
#else
__device__ __forceinline__ float4 widen(float4 v) { return v; }
__device__ __forceinline__ float4 narrowed(float4 v) { return v; }
#endif

__device__ __forceinline__ void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// x = the sum of the codes' embeddings, in the order in which torch sums. By all threads.
__device__ __forceinline__ void embed(const SampleArgs& s, int b, int code) {
  const Weight* from[BOOKS];
#pragma unroll
  for (int c = 0; c < BOOKS; ++c) from[c] = s.embed + (i64)(c * VOCAB + __shfl_sync(ALL, code, c)) * HIDDEN;
#pragma unroll
  for (int at = 0; at < HIDDEN; at += THREADS * 4) {
    const int column = at + threadIdx.x * 4;
    if (column >= HIDDEN) break;
    Four part[BOOKS];
    float4 sum[4] = {};
#pragma unroll
    for (int c = 0; c < BOOKS; ++c) part[c] = *(const Four*)(from[c] + column);
#pragma unroll
    for (int c = 0; c < BOOKS; ++c) add(sum[c & 3], widen(part[c]));
#pragma unroll
    for (int i = 1; i < 4; ++i) add(sum[0], sum[i]);
    *(Four*)(s.x + (i64)b * HIDDEN + column) = narrowed(sum[0]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_step(const SampleArgs s) {
  __shared__ List lists[BOOKS];
  __shared__ int codes[BOOKS];
  const int b = blockIdx.x, book = threadIdx.x >> 5, lane = lane_id();
  const i64* const seed = s.keys_philox + (i64)b * 20;  // ten rounds' keys, of which the first gives the others
  const Row row = {(u32)s.written[b],   (u32)s.line[b],          (u32)seed[0],          (u32)seed[1],
                   (int)s.countdown[b], (int)s.prompt_length[b], (int)s.row_limit[b], s.ban[b] != 0, !s.done[b]};
  // No end inside speech but on codebook 0, and there none that v3 would ignore.
  const bool no_end = row.ban && row.countdown < 0 && (book > 0 || (!IS_V2 && row.written < BOOKS));
  Logits logits = {s.logits + (i64)(b * BOOKS + book) * VOCAB, s.inverse_temperature[b], row.ban, no_end};
#if IS_V2
  const int place = min(lane, WINDOW - 1);  // lane w has the window's code of w frames from its beginning
  i64* const window = s.history + ((i64)b * WINDOW + place) * BOOKS + book;
  const int seen = (int)*window;
  const bool counts = lane < WINDOW && seen < BOC && s.window_mask[b * WINDOW + place];
  const float limit = s.repeat_limit[b];
#endif
  int code = draw(s, row, b, book, logits, lists[book]);
#if IS_V2
  if ((float)__popc(__ballot_sync(ALL, counts && seen == code)) >= limit) {
    logits.scale = 1.f;  // seen too often: drawn again without temperature, top-k and top-p
    code = draw_wide(logits, 1, row, book, REDRAW, 1.f);
  }
#endif
  if (lane == 0) codes[book] = code;
  __syncthreads();  // from here on what was read of the row may be overwritten
  code = codes[min(lane, BOOKS - 1)];
  const int countdown = machine(code, row);
  if (book == 0) emit(s, row, b, code, countdown);
#if IS_V2
  const int newest = __shfl_sync(ALL, code, book), next = __shfl_down_sync(ALL, seen, 1);
  if (lane < WINDOW) *window = lane == WINDOW - 1 ? newest : next;
#endif
  embed(s, b, code);
}
