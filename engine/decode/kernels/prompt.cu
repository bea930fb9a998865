// Prefill pass for a fill, many prompt positions at once, between the matrix products: embedding, norms, attention, the
// MLP's gate. Also dequantises matrices for those products.
//
// "Place" is a row of the fill. It holds one position of one sequence, or nothing. Each is computed independently, in an
// order that depends only on its position, so its result depends neither on its place nor on the other places. Places
// below `first_code` hold text, the others codes. Residual stream and sums are fp32; products read bf16.
// Compile-time: HIDDEN, HEADS, KV_HEADS, INTER, EPS, HAS_QK_NORM, CODES, CODEBOOKS; MAX_PLACES, MAX_GROUPS and MAX_ENDS
// per fill; NORM_THREADS, PLACE_THREADS, ATTEND_THREADS, SWIGLU_THREADS, COPY_THREADS per block. With quantised weights
// also FORMAT.

#include "load.cuh"
#include "attention_prologue.cuh"
#include "prompt_attention.cuh"
#include "row_ops.cuh"
#ifdef FORMAT
#include "weight_format.cuh"
#endif

// Contents of a fill, written by the host before each launch. A group is up to 16 consecutive places of one sequence. An
// end is a place whose logits are needed.
struct Fill {
  u16 *keys, *values;      // of a runner: [layers][rows][KV_HEADS][max_seq_len][DIM]
  float* logits;           // of a runner: [rows][CODES]
  long long layer_stride;  // of keys and values
  int max_seq_len, first_code, groups, ends;
  int row[MAX_PLACES];  // -1: empty
  int position[MAX_PLACES];
  int group_first[MAX_GROUPS], group_count[MAX_GROUPS];
  int end_place[MAX_ENDS], end_row[MAX_ENDS];
  int codes[MAX_PLACES][CODEBOOKS];  // rows of the embedding, from place first_code on
};
static_assert(sizeof(Fill) == SIZEOF_Fill, "prompt.py fills another structure");
static_assert(ATTEND_THREADS == GROUP * 32, "a query's head has a warp");

struct EmbedArgs { const Fill* fill; const u16 *text, *embed, *text_norm, *code_norm; float* x; u16* h; };
static_assert(sizeof(EmbedArgs) == SIZEOF_EmbedArgs, "prompt.py fills another structure");

// x = the place's embedding, h = its norm. text: [places][HIDDEN], embeddings of the text places.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) embed_places(const EmbedArgs s) {
  const int place = blockIdx.x, t = threadIdx.x * 8;
  const long long at = (long long)place * HIDDEN + t;
  const Fill& c = *s.fill;
  float v[8] = {};
  const bool is_text = place < c.first_code;
  if (c.row[place] >= 0) {
    if (is_text) {
      add8(v, *(const uint4*)(s.text + at));
    } else {
      const int* codes = c.codes[place - c.first_code];
#pragma unroll
      for (int k = 0; k < CODEBOOKS; ++k) add8(v, *(const uint4*)(s.embed + (long long)codes[k] * HIDDEN + t));
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = low(pack(v[i], 0.f));  // rounded like a step's embedding
    }
  }
  store8(s.x + at, v);
  norm_row(v, *(const uint4*)((is_text ? s.text_norm : s.code_norm) + t), s.h + at);
}

struct AddNormArgs { const Fill* fill; const u16 *delta, *text_norm, *code_norm; float* x; u16* h; };
static_assert(sizeof(AddNormArgs) == SIZEOF_AddNormArgs, "prompt.py fills another structure");

// x += delta; h = its norm.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) add_norm(const AddNormArgs s) {
  const int place = blockIdx.x;
  const long long at = (long long)place * HIDDEN + threadIdx.x * 8;
  float v[8];
  load8(v, s.x + at);
  add8(v, *(const uint4*)(s.delta + at));
  store8(s.x + at, v);
  norm_row(v, *(const uint4*)((place < s.fill->first_code ? s.text_norm : s.code_norm) + threadIdx.x * 8), s.h + at);
}

// h[i] = the norm of x + delta at the fill's i-th end; zeros after the last.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) norm_ends(const AddNormArgs s) {
  const int i = blockIdx.x, t = threadIdx.x * 8;
  float v[8] = {};
  if (i < s.fill->ends) {
    const long long at = (long long)s.fill->end_place[i] * HIDDEN + t;
    load8(v, s.x + at);
    add8(v, *(const uint4*)(s.delta + at));
  }
  norm_row(v, *(const uint4*)(s.text_norm + t), s.h + (long long)i * HIDDEN + t);
}

struct LogitsArgs { const Fill* fill; const u16* head; };
static_assert(sizeof(LogitsArgs) == SIZEOF_LogitsArgs, "prompt.py fills another structure");

// Copies the logits of the fill's i-th end, [ends][CODES], to its row.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) place_logits(const LogitsArgs s) {
  const int i = blockIdx.x;
  if (i >= s.fill->ends) return;
  float* to = s.fill->logits + (long long)s.fill->end_row[i] * CODES;
  for (int k = threadIdx.x; k < CODES; k += COPY_THREADS) to[k] = bf16(s.head[(long long)i * CODES + k]);
}

struct PlaceArgs { const Fill* fill; const u16 *qk_norm, *cos, *sin; u16 *qkv, *attended; int layer; };
static_assert(sizeof(PlaceArgs) == SIZEOF_PlaceArgs, "prompt.py fills another structure");

// Norms and rotates queries in place. Norms and rotates keys, and writes keys and values to the cache.
extern "C" __global__ void __launch_bounds__(PLACE_THREADS) place_qkv(const PlaceArgs s) {
  const Fill& c = *s.fill;
  const int place = blockIdx.x, row = c.row[place], at = c.position[place];
  if (row < 0) {  // attention skips it
    for (int i = threadIdx.x; i < Q_SIZE / 8; i += PLACE_THREADS)
      *(uint4*)(s.attended + (long long)place * Q_SIZE + i * 8) = make_uint4(0, 0, 0, 0);
    return;
  }
  const Rope rope = load_rope(s.cos, s.sin, at);
  u16* qkv = s.qkv + (long long)place * QKV_SIZE;
  for (int i = threadIdx.x >> 5; i < HEADS + 2 * KV_HEADS; i += PLACE_THREADS / 32) {
    uint2 v = load4(qkv + i * DIM);
    if (i < HEADS + KV_HEADS) v = pack4(norm_rope(unpack4(v), load_norm(s.qk_norm, i), rope));
    if (i < HEADS) {
      store4(qkv + i * DIM, v);
      continue;
    }
    const int kv = (i - HEADS) % KV_HEADS;
    u16* cache = (i < HEADS + KV_HEADS ? c.keys : c.values) + s.layer * c.layer_stride;
    store4(cache + (((long long)row * KV_HEADS + kv) * c.max_seq_len + at) * DIM, v);
  }
}

struct AttendArgs { const Fill* fill; const u16* qkv; u16* attended; int layer; };
static_assert(sizeof(AttendArgs) == SIZEOF_AttendArgs, "prompt.py fills another structure");

extern "C" __global__ void __launch_bounds__(ATTEND_THREADS) attend(const AttendArgs s) {
  __shared__ __align__(128) Tiles tiles;
  const Fill& c = *s.fill;
  const int group = blockIdx.x / KV_HEADS, kv = blockIdx.x % KV_HEADS;
  if (group >= c.groups) return;
  const int lane = threadIdx.x & 31, first = c.group_first[group], count = c.group_count[group];
  int end = c.position[first + min(lane, count - 1)] + 1;
#pragma unroll
  for (int o = 16; o; o >>= 1) end = max(end, __shfl_xor_sync(~0u, end, o));
  const long long cached =
      s.layer * c.layer_stride + ((long long)c.row[first] * KV_HEADS + kv) * c.max_seq_len * DIM;
  const u16 *keys = c.keys + cached, *values = c.values + cached;
  const int head = (kv * GROUP + (threadIdx.x >> 5)) * DIM;
  const int places[2] = {first + min(lane >> 2, count - 1), first + min((lane >> 2) + 8, count - 1)};
  Queries queries;
#pragma unroll
  for (int i = 0; i < 2; ++i) queries.at[i] = c.position[places[i]];
  load_queries(queries, s.qkv + (long long)places[0] * QKV_SIZE + head, s.qkv + (long long)places[1] * QKV_SIZE + head);
  copy_tile(tiles.keys[0], keys, 0, end);
  copy_tile(tiles.values[0], values, 0, end);
  end_of_copies();
#pragma unroll 1
  for (int base = 0, stage = 0; base < end; base += SLOTS, stage ^= 1) {
    if (base + SLOTS < end) {
      copy_tile(tiles.keys[stage ^ 1], keys, base + SLOTS, end);
      copy_tile(tiles.values[stage ^ 1], values, base + SLOTS, end);
    }
    end_of_copies();
    wait_for_copies<1>();
    __syncthreads();
    attend_tile(queries, tiles.keys[stage], tiles.values[stage], base);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    write_query(queries, i, s.attended + (long long)places[i] * Q_SIZE + head, (lane >> 2) + 8 * i < count);
}

extern "C" __global__ void __launch_bounds__(SWIGLU_THREADS) swiglu(const SwigluArgs s) { gate_rows(s); }

#ifdef FORMAT
struct WidenArgs { const u8* weights; u16* out; int width, rows; };
static_assert(sizeof(WidenArgs) == SIZEOF_WidenArgs, "prompt.py fills another structure");

// Dequantises a matrix [rows][width] to bf16. One block of weights per warp.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) widen(const WidenArgs s) {
  const int in_row = s.width / Format::BLOCK, lane = threadIdx.x & 31;
  const int i = blockIdx.x * (COPY_THREADS / 32) + (threadIdx.x >> 5), row = i / in_row, block = i % in_row;
  if (row >= s.rows) return;
  const u8* from = s.weights + row * Format::row(s.width);
  float v[16];
  Format::widen(v, from + block * Format::bytes(Format::BLOCK), from + Format::bytes(s.width));
  uint4* to = (uint4*)(s.out + (long long)row * s.width + block * Format::BLOCK + lane * 16);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    to[h] = make_uint4(pack(v[8 * h], v[8 * h + 1]), pack(v[8 * h + 2], v[8 * h + 3]), pack(v[8 * h + 4], v[8 * h + 5]),
                       pack(v[8 * h + 6], v[8 * h + 7]));
}
#endif
