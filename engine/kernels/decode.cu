// One decode step of the talker for one row, embedding to logits, as one cooperative kernel that reads each weight once.
//
// Every block stays on its multiprocessor and walks through the phases of all layers; a grid barrier separates them.
// The memory system must not idle at a barrier, so each warp has its first weights of the next phase loading meanwhile.
// Widths are compile-time: HIDDEN, HEADS, KV_HEADS, INTER, CODES (codebooks * vocabulary), EPS, HAS_QK_NORM, and
// ROW_TILE, the rows of a projection that a warp loads at a time.
// Weights and cache are bf16; the residual stream and all sums are fp32.

#include "common.cuh"
#include "matvec.cuh"
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_step(const Step s) {
  __shared__ Shared sh;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, block = blockIdx.x;
  const int qkv0 = first_row(QKV_ROWS, block) + warp, head0 = first_row(CODES, block) + warp;
  const int mlp0 = first_row(INTER, block) + warp;
  const int qkv_count = (first_row(QKV_ROWS, block + 1) - qkv0 + WARPS - 1) / WARPS;
  const int mlp_count = (first_row(INTER, block + 1) - mlp0 + WARPS - 1) / WARPS * 2;
  const int head_count = (first_row(CODES, block + 1) - head0 + WARPS - 1) / WARPS;
  u32 round = *s.start;
  Half front;
  uint4 norm = norm_weights(s.layers[0].attn_norm);
  load_half(front, s.layers[0].qkv + (long long)qkv0 * HIDDEN, 0, qkv_count > 0);
  for (int layer = 0; layer < s.layer_count; ++layer) {
    const LayerWeights& w = s.layers[layer];
    norm_input(s, norm, layer == 0, sh);
    wide_rows(front, qkv_count, sh, [&](int j) { return w.qkv + (long long)(qkv0 + j * WARPS) * HIDDEN; },
              [&](int j, float sum) { if (lane == 0) s.qkv[qkv0 + j * WARPS] = sum; });
    arrive(s);
    wait(s, round);
    attention(s, w.qk_norm, layer, sh);
    arrive(s);
    {
      Projection<Q_ROWS> out;
      out.begin(w.out);
      wait(s, round);
      out.add(s, w.out, s.attended, layer == 0, sh);
    }
    arrive(s);
    norm = norm_weights(w.mlp_norm);
    auto mlp_row = [&](int j) { return w.gate_up + (long long)((j & 1) * INTER + mlp0 + (j >> 1) * WARPS) * HIDDEN; };
    load_half(front, mlp_row(0), 0, mlp_count > 0);
    wait(s, round);
    norm_input(s, norm, false, sh);
    float gate = 0.f;
    wide_rows(front, mlp_count, sh, mlp_row, [&](int j, float sum) {
      if (j & 1) { if (lane == 0) s.act[mlp0 + (j >> 1) * WARPS] = gate / (1.f + __expf(-gate)) * sum; }
      else gate = sum;
    });
    arrive(s);
    {
      Projection<INTER> down;
      down.begin(w.down);
      wait(s, round);
      down.add(s, w.down, s.act, false, sh);
    }
    arrive(s);
    const bool more = layer + 1 < s.layer_count;
    norm = norm_weights(more ? s.layers[layer + 1].attn_norm : s.norm);
    const u16* next = more ? s.layers[layer + 1].qkv + (long long)qkv0 * HIDDEN : s.head + (long long)head0 * HIDDEN;
    load_half(front, next, 0, (more ? qkv_count : head_count) > 0);
    wait(s, round);
  }
  norm_input(s, norm, false, sh);
  wide_rows(front, head_count, sh, [&](int j) { return s.head + (long long)(head0 + j * WARPS) * HIDDEN; },
            [&](int j, float sum) {  // rounded as a bf16 product would be
              if (lane == 0) s.logits[head0 + j * WARPS] = __uint_as_float(to_bf16(sum) << 16);
            });
  if (block == 0 && threadIdx.x == 0) *s.start = round;  // everyone read the old one before the first barrier
}
