// One decode step of the talker for one row, embedding to logits: a persistent cooperative kernel, one block per SM.
//
// Every block runs the phases of all layers, and each weight is read once. The results of a phase go to the blocks that
// need them by flag-in-word signalling (exchange.cuh), while the weights of the next phases stream into shared memory
// (weight_pipeline.cuh).
// Compile-time: HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, CODES (codebooks * vocabulary), EPS, HAS_QK_NORM; BLOCKS,
// grid size; WARPS per block; MAX_SPLITS of the KV cache; FORMAT and HEAD_FORMAT (weight_format.cuh), of the layers'
// matrices and of the head; TILE_BYTES, PREFETCH and STAGES of the pipeline; STATIC_SHARED, maximum bytes of shared
// memory besides its stages; POLLS_PER_CHECK and TIMEOUT_MS of a wait (exchange.cuh).
// Norms, embeddings and cache are bf16; the residual stream and all sums are fp32.

#include "load.cuh"
#include "exchange.cuh"
#include "weight_format.cuh"
#include "weight_pipeline.cuh"
#include "gemv.cuh"
#include "attention_prologue.cuh"
#include "single_attention.cuh"

// The warp's rows of a matrix whose rows are split over all warps of the grid.
__device__ __forceinline__ Range warp_rows(int rows) {
  const int base = range_start(rows, blockIdx.x, BLOCKS), mine = range_start(rows, blockIdx.x + 1, BLOCKS) - base;
  const int warp = threadIdx.x >> 5, first = range_start(mine, warp, WARPS);
  return {base + first, range_start(mine, warp + 1, WARPS) - first};
}
// The warp's tiles of a projection [HIDDEN, K], counted from the block's first row; its rows if quantised.
template <class F, int K>
__device__ __forceinline__ Range warp_parts() {
  using P = Parts<F, K>;
  const int owned = range_start(HIDDEN, blockIdx.x + 1, BLOCKS) - range_start(HIDDEN, blockIdx.x, BLOCKS);
  const int warp = threadIdx.x >> 5, i = is_quantised<F>() ? warp / P::COUNT : warp;
  const int all = is_quantised<F>() ? owned : owned * P::COUNT, n = is_quantised<F>() ? WARPS / P::COUNT : WARPS;
  const int first = range_start(all, i, n);
  return {first, range_start(all, i + 1, n) - first};
}
template <class F>
__device__ __forceinline__ TileRange row_tiles(const u8* w, int from, Range rows) {
  using P = Parts<F, HIDDEN>;
  constexpr int RUN = F::bytes(is_quantised<F>() ? HIDDEN : P::WEIGHTS);
  w += (from + rows.first) * F::row(HIDDEN);
  return {w, RUN, F::row(HIDDEN) - F::bytes(HIDDEN), RUN, is_quantised<F>() ? rows.count : rows.count * P::COUNT};
}
template <class F, int K>
__device__ __forceinline__ TileRange projection_tiles(const u8* w) {
  using P = Parts<F, K>;
  const Range mine = warp_parts<F, K>();
  w += range_start(HIDDEN, blockIdx.x, BLOCKS) * F::row(K);
  if constexpr (is_quantised<F>()) {
    const Range blocks = part_blocks<F, K>();
    const u32 run = F::bytes(F::BLOCK) * blocks.count;
    w += mine.first * F::row(K) + blocks.first * F::bytes(F::BLOCK);
    return {w, run, (u32)F::row(K) - run, run, mine.count};
  }
  constexpr int RUN = F::bytes(P::WEIGHTS);
  return {w + (long long)mine.first * RUN, RUN, 0, RUN, mine.count};
}
__device__ __noinline__ TileRange tile_range(const LayerWeights* layers, const u8* head, int layer_count, int matrix) {
  if (matrix == layer_count * MATRICES) return row_tiles<HeadFormat>(head, 0, warp_rows(CODES));
  const LayerWeights& w = layers[matrix / MATRICES];
  switch (matrix % MATRICES) {
    case 0: return row_tiles<Format>(w.qkv, 0, warp_rows(QKV_SIZE));
    case 1: return projection_tiles<Format, Q_SIZE>(w.out);
    case 2: return row_tiles<Format>(w.gate_up, 0, warp_rows(INTER));
    case 3: return row_tiles<Format>(w.gate_up, INTER, warp_rows(INTER));
    default: return projection_tiles<Format, INTER>(w.down);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) single_step(const SingleArgs s) {
  __shared__ Shared sh;
  if (*s.stalled) return;
  if (threadIdx.x == 0) launch_began() = clock_ms();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  Range* const ranges = sh.ranges[warp];
  if (lane == 0) {
    ranges[0] = warp_rows(QKV_SIZE); ranges[1] = warp_parts<Format, Q_SIZE>(); ranges[2] = warp_rows(INTER);
    ranges[3] = warp_parts<Format, INTER>(); ranges[4] = warp_rows(CODES);
  }
  __syncwarp();
  Pipeline pipeline = start_pipeline(s);
  const int base = range_start(HIDDEN, blockIdx.x, BLOCKS), end = range_start(HIDDEN, blockIdx.x + 1, BLOCKS);
  for (int r = threadIdx.x; r < end - base; r += THREADS) sh.residual[r] = bf16(s.x_in[base + r]);
  const int at = (int)*s.position;
  const bool idle = blockIdx.x >= (at < SHORT_CONTEXT ? HEADS : KV_HEADS);  // no splits to combine
  u32 epoch = *s.epoch;  // of the last exchange
  for (int layer = 0; layer < s.layer_count; ++layer, epoch += 5) {
    const LayerWeights& w = s.layers[layer];
    const long long cache = layer * s.layer_stride;
    const NormWeights attn_norm = norm_weights(w.attn_norm);
    wait_arrivals(s, epoch);
    norm_input<Format>(s, attn_norm, layer == 0, epoch, sh.x, sh);
    const RowScales<Format, HIDDEN> qkv_scales(w.qkv, ranges[0].first);
    gemv_hidden<Format>(s, pipeline, ranges[0].count, qkv_scales, Normed<Format>(sh.x, sh), [&](int j, float sum) {
      if (lane == 0) publish(s.qkv + ranges[0].first + j, ll_word(sum, epoch + 1));
    });
    arrive(s);
    if (lane == 0) sh.spilled[warp] = pipeline;
    attention(s, w, at, s.keys + cache, s.values + cache, epoch + 1, sh);
    arrive(s);
    pipeline = sh.spilled[warp];
    if (idle) fill(s, pipeline);
    const NormWeights mlp_norm = norm_weights(w.mlp_norm);
    wait_arrivals(s, epoch + 2);
    project<Format, Q_SIZE>(s, pipeline, w.out, s.attended, ranges[1], epoch + 3, sh.project.attended, sh);
    wait_arrivals(s, epoch + 3);
    norm_input<Format>(s, mlp_norm, false, epoch + 3, sh.x, sh);
    const Normed<Format> normed(sh.x, sh);
    const RowScales<Format, HIDDEN> gate_scales(w.gate_up, ranges[2].first);
    gemv_hidden<Format>(s, pipeline, ranges[2].count, gate_scales, normed, [&](int j, float sum) {
      if (lane == 0) sh.gate[warp][j] = sum;
    });
    const RowScales<Format, HIDDEN> up_scales(w.gate_up, INTER + ranges[2].first);
    gemv_hidden<Format>(s, pipeline, ranges[2].count, up_scales, normed, [&](int j, float sum) {
      const float gate = sh.gate[warp][j];
      if (lane == 0) publish(s.act + ranges[2].first + j, ll_word_bf16(gate / (1.f + __expf(-gate)) * sum, epoch + 4));
    });
    arrive(s);
    wait_arrivals(s, epoch + 4);
    project<Format, INTER>(s, pipeline, w.down, s.act, ranges[3], epoch + 5, sh.project.act, sh);
  }
  const NormWeights norm = norm_weights(s.norm);
  wait_arrivals(s, epoch);
  norm_input<HeadFormat>(s, norm, false, epoch, sh.head_x, sh);
  const RowScales<HeadFormat, HIDDEN> scales(s.head, ranges[4].first);
  gemv_hidden<HeadFormat>(s, pipeline, ranges[4].count, scales, Normed<HeadFormat>(sh.head_x, sh), [&](int j, float sum) {
    // Rounded like torch's bf16 product.
    if (lane == 0) s.logits[ranges[4].first + j] = __uint_as_float(pack(0.f, sum));
  });
  // This block has received values from every other block, so all have read the epoch at which the launch began.
  if (blockIdx.x == 0 && threadIdx.x == 0) *s.epoch = epoch;
}
