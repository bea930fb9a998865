// One decode step of the talker for one row, embedding to logits: one cooperative kernel that reads each weight once.
//
// Every block stays on its multiprocessor and walks through the phases of all layers; what a phase makes is handed to
// the blocks that need it (exchange.cuh). The memory system must not idle while they wait: rings of shared memory go on
// filling with the weights that come next (weight_pipeline.cuh).
// Compile-time: HIDDEN, HEADS, KV_HEADS, INTER, CODES (codebooks * vocabulary), EPS, HAS_QK_NORM; BLOCKS, the grid;
// PIECE, the most weights a copy brings; SLOTS and RING, pieces a warp has under way and may have; SHARED_ROOM, bytes
// beside the rings.
// Weights and cache are bf16; the residual stream and all sums are fp32.

#include "load.cuh"
#include "exchange.cuh"
#include "weight_pipeline.cuh"
#include "gemv.cuh"
#include "single_attention.cuh"

__device__ __forceinline__ Part rows_of(int rows) {
  const int base = share(rows, blockIdx.x, BLOCKS), mine = share(rows, blockIdx.x + 1, BLOCKS) - base;
  const int warp = threadIdx.x >> 5, first = share(mine, warp, WARPS);
  return {base + first, share(mine, warp + 1, WARPS) - first};
}
// The same of a projection, in pieces counted from the block's first row.
template <int K>
__device__ __forceinline__ Part pieces_in_block() {
  const int pieces = parts_of(K) * (share(HIDDEN, blockIdx.x + 1, BLOCKS) - share(HIDDEN, blockIdx.x, BLOCKS));
  const int warp = threadIdx.x >> 5, first = share(pieces, warp, WARPS);
  return {first, share(pieces, warp + 1, WARPS) - first};
}
__device__ __forceinline__ Pieces wide_pieces(const u16* w, int from, Part mine) {
  constexpr int PARTS = parts_of(HIDDEN);
  return {(const unsigned char*)(w + (long long)(from + mine.first) * HIDDEN), HIDDEN / PARTS * 2, mine.count * PARTS};
}
template <int K>
__device__ __forceinline__ Pieces projection_pieces(const u16* w) {
  constexpr int N = K / parts_of(K);
  const Part mine = pieces_in_block<K>();
  w += (long long)share(HIDDEN, blockIdx.x, BLOCKS) * K + (long long)mine.first * N;
  return {(const unsigned char*)w, N * 2, mine.count};
}
__device__ __noinline__ Pieces pieces_of(const LayerWeights* layers, const u16* head, int layer_count, int span) {
  if (span == layer_count * SPANS) return wide_pieces(head, 0, rows_of(CODES));
  const LayerWeights& w = layers[span / SPANS];
  switch (span % SPANS) {
    case 0: return wide_pieces(w.qkv, 0, rows_of(QKV_ROWS));
    case 1: return projection_pieces<Q_ROWS>(w.out);
    case 2: return wide_pieces(w.gate_up, 0, rows_of(INTER));
    case 3: return wide_pieces(w.gate_up, INTER, rows_of(INTER));
    default: return projection_pieces<INTER>(w.down);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) single_step(const SingleArgs s) {
  __shared__ Shared sh;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  Part* const parts = sh.parts[warp];
  if (lane == 0) {
    parts[0] = rows_of(QKV_ROWS); parts[1] = pieces_in_block<Q_ROWS>(); parts[2] = rows_of(INTER);
    parts[3] = pieces_in_block<INTER>(); parts[4] = rows_of(CODES);
  }
  __syncwarp();
  Ring ring = make_ring(s);
  const int base = share(HIDDEN, blockIdx.x, BLOCKS), end = share(HIDDEN, blockIdx.x + 1, BLOCKS);
  for (int r = threadIdx.x; r < end - base; r += THREADS) sh.own[r] = bf16(s.x_in[base + r]);
  const int at = (int)*s.position;
  const bool idle = blockIdx.x >= (at < SHORT ? HEADS : KV_HEADS);  // at the end of attention: others join the heads
  u32 round = *s.rounds;  // the hand-over that came last
  for (int layer = 0; layer < s.layer_count; ++layer, round += 5) {
    const LayerWeights& w = s.layers[layer];
    const long long cache = layer * s.layer_stride;
    const NormWeights attn_norm = norm_weights(w.attn_norm);
    wait(s, round);
    norm_input(s, attn_norm, layer == 0, round, sh);
    wide_rows(s, ring, parts[0].count, sh, [&](int j, float sum) {
      if (lane == 0) hand(s.qkv + parts[0].first + j, word_of(sum, round + 1));
    });
    arrive(s);
    if (lane == 0) sh.parked[warp] = ring;
    attention(s, w.qk_norm, at, s.keys + cache, s.values + cache, round + 1, sh);
    arrive(s);
    ring = sh.parked[warp];
    if (idle) stock(s, ring);
    const NormWeights mlp_norm = norm_weights(w.mlp_norm);
    wait(s, round + 2);
    project<Q_ROWS>(s, ring, s.attended, parts[1].first, parts[1].first + parts[1].count, round + 3, sh);
    wait(s, round + 3);
    norm_input(s, mlp_norm, false, round + 3, sh);
    wide_rows(s, ring, parts[2].count, sh, [&](int j, float sum) { if (lane == 0) sh.gate[warp][j] = sum; });
    wide_rows(s, ring, parts[2].count, sh, [&](int j, float sum) {
      const float gate = sh.gate[warp][j];
      if (lane == 0) hand(s.act + parts[2].first + j, bf16_word_of(gate / (1.f + __expf(-gate)) * sum, round + 4));
    });
    arrive(s);
    wait(s, round + 4);
    project<INTER>(s, ring, s.act, parts[3].first, parts[3].first + parts[3].count, round + 5, sh);
  }
  const NormWeights norm = norm_weights(s.norm);
  wait(s, round);
  norm_input(s, norm, false, round, sh);
  wide_rows(s, ring, parts[4].count, sh, [&](int j, float sum) {  // rounded as a bf16 product would be
    if (lane == 0) s.logits[parts[4].first + j] = __uint_as_float(pack(0.f, sum));
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) *s.rounds = round;  // it has values of every block, so all have read it
}
