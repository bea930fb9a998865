// A fill, positions of prompts together through the talker, between its matrix products: embedding, norms, attention, the
// MLP's gate; and quantised matrices written out for those products.
//
// "Place" is a row of the fill. Each holds one position of one sequence, or nothing, and is computed on its own, in an
// order that depends on its position only: its result depends on neither its place nor what the others hold. Those below
// `first_code` hold text, the others codes. Residual stream and sums are fp32; products read bf16.
// Compile-time: HIDDEN, HEADS, KV_HEADS, INTER, EPS, HAS_QK_NORM, CODES, CODEBOOKS; MAX_PLACES, MAX_GROUPS and MAX_ENDS of a
// fill; NORM_THREADS, PLACE_THREADS, ATTEND_THREADS, SWIGLU_THREADS, COPY_THREADS of a block; for quantised weights FORMAT.

#include "load.cuh"
#include "attention_prologue.cuh"
#include "prompt_attention.cuh"
#ifdef FORMAT
#include "weight_format.cuh"
#endif

// What a fill holds; the host writes it before each launch. A group is up to 16 places of one sequence that follow each
// other; an end is a place whose logits are wanted.
struct Fill {
  u16 *keys, *values;      // of a runner: [layers][rows][KV_HEADS][max_seq_len][DIM]
  float* logits;           // of a runner: [rows][CODES]
  long long layer_stride;  // of keys and values
  int max_seq_len, first_code, groups, ends;
  int row[MAX_PLACES];  // -1: nothing there
  int position[MAX_PLACES];
  int group_first[MAX_GROUPS], group_count[MAX_GROUPS];
  int end_place[MAX_ENDS], end_row[MAX_ENDS];
  int codes[MAX_PLACES][CODEBOOKS];  // rows of the embedding, from place first_code on
};
static_assert(sizeof(Fill) == SIZEOF_Fill, "prompt.py fills another structure");
static_assert(NORM_THREADS * 8 == HIDDEN && ATTEND_THREADS == GROUP * 32, "a place has a block, a query's head a warp");

// h = RMSNorm(v) * weight of one place, eight values a thread.
__device__ __forceinline__ void norm_place(const float (&v)[8], const u16* weight, u16* h) {
  __shared__ float squares[HIDDEN / 256];
  const int t = threadIdx.x;
  float square = 0.f, total = 0.f, w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) square = fmaf(v[i], v[i], square);
  square = warp_sum(square);
  if ((t & 31) == 0) squares[t >> 5] = square;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < HIDDEN / 256; ++i) total += squares[i];
  const float f = rsqrtf(total * (1.f / HIDDEN) + EPS);
  unpack8(*(const uint4*)(weight + t * 8), w);
  *(uint4*)(h + t * 8) = make_uint4(pack(v[0] * f * w[0], v[1] * f * w[1]), pack(v[2] * f * w[2], v[3] * f * w[3]),
                                    pack(v[4] * f * w[4], v[5] * f * w[5]), pack(v[6] * f * w[6], v[7] * f * w[7]));
}
__device__ __forceinline__ void add8(float (&v)[8], const u16* from) {
  float w[8];
  unpack8(*(const uint4*)from, w);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] += w[i];
}
__device__ __forceinline__ void load8(float (&v)[8], const float* from) {
  const float4 a = *(const float4*)from, b = *(const float4*)(from + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
__device__ __forceinline__ void store8(float* to, const float (&v)[8]) {
  *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
  *(float4*)(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
}

struct EmbedArgs { const Fill* fill; const u16 *text, *embed, *text_norm, *code_norm; float* x; u16* h; };
static_assert(sizeof(EmbedArgs) == SIZEOF_EmbedArgs, "prompt.py fills another structure");

// x = the place's embedding, h = its norm. text: [places][HIDDEN], the embeddings of what is text.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) embed_places(const EmbedArgs s) {
  const int place = blockIdx.x, at = threadIdx.x * 8;
  const Fill& c = *s.fill;
  float v[8] = {};
  const bool is_text = place < c.first_code;
  if (c.row[place] >= 0) {
    if (is_text) {
      add8(v, s.text + (long long)place * HIDDEN + at);
    } else {
      const int* codes = c.codes[place - c.first_code];
#pragma unroll
      for (int k = 0; k < CODEBOOKS; ++k) add8(v, s.embed + (long long)codes[k] * HIDDEN + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = low(pack(v[i], 0.f));  // as a step's embedding
    }
  }
  store8(s.x + (long long)place * HIDDEN + at, v);
  norm_place(v, is_text ? s.text_norm : s.code_norm, s.h + (long long)place * HIDDEN);
}

struct AddNormArgs { const Fill* fill; const u16 *delta, *text_norm, *code_norm; float* x; u16* h; };
static_assert(sizeof(AddNormArgs) == SIZEOF_AddNormArgs, "prompt.py fills another structure");

// x += delta; h = its norm.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) add_norm(const AddNormArgs s) {
  const int place = blockIdx.x;
  const long long at = (long long)place * HIDDEN + threadIdx.x * 8;
  float v[8];
  load8(v, s.x + at);
  add8(v, s.delta + at);
  store8(s.x + at, v);
  norm_place(v, place < s.fill->first_code ? s.text_norm : s.code_norm, s.h + (long long)place * HIDDEN);
}

// h[i] = the norm of x + delta at the fill's i-th end; zeros after the last.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) norm_ends(const AddNormArgs s) {
  const int i = blockIdx.x;
  float v[8] = {};
  if (i < s.fill->ends) {
    const long long at = (long long)s.fill->end_place[i] * HIDDEN + threadIdx.x * 8;
    load8(v, s.x + at);
    add8(v, s.delta + at);
  }
  norm_place(v, s.text_norm, s.h + (long long)i * HIDDEN);
}

struct LogitsArgs { const Fill* fill; const u16* head; };
static_assert(sizeof(LogitsArgs) == SIZEOF_LogitsArgs, "prompt.py fills another structure");

// The logits of the fill's i-th end, [ends][CODES], to where its row has them.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) place_logits(const LogitsArgs s) {
  const int i = blockIdx.x;
  if (i >= s.fill->ends) return;
  float* to = s.fill->logits + (long long)s.fill->end_row[i] * CODES;
  for (int k = threadIdx.x; k < CODES; k += COPY_THREADS) to[k] = bf16(s.head[(long long)i * CODES + k]);
}

struct PlaceArgs { const Fill* fill; const u16 *qk_norm, *cos, *sin; u16 *qkv, *attended; int layer; };
static_assert(sizeof(PlaceArgs) == SIZEOF_PlaceArgs, "prompt.py fills another structure");

// Queries are normed and rotated where they are; keys too, and go to the cache with the values.
extern "C" __global__ void __launch_bounds__(PLACE_THREADS) place_qkv(const PlaceArgs s) {
  const Fill& c = *s.fill;
  const int place = blockIdx.x, row = c.row[place], at = c.position[place];
  if (row < 0) {  // attention leaves it out
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

struct SwigluArgs { const u16* gate_up; u16* act; int places; };
static_assert(sizeof(SwigluArgs) == SIZEOF_SwigluArgs, "prompt.py fills another structure");

// act = silu(gate) * up. 8 values a thread.
extern "C" __global__ void __launch_bounds__(SWIGLU_THREADS) swiglu(const SwigluArgs s) {
  constexpr int WIDE = INTER / 8;
  const int i = blockIdx.x * SWIGLU_THREADS + threadIdx.x, place = i / WIDE, at = i % WIDE * 8;
  if (place >= s.places) return;
  const u16* from = s.gate_up + (long long)place * (2 * INTER) + at;
  float gate[8], up[8];
  unpack8(*(const uint4*)from, gate);
  unpack8(*(const uint4*)(from + INTER), up);
#pragma unroll
  for (int k = 0; k < 8; ++k) up[k] *= gate[k] / (1.f + __expf(-gate[k]));
  *(uint4*)(s.act + (long long)place * INTER + at) =
      make_uint4(pack(up[0], up[1]), pack(up[2], up[3]), pack(up[4], up[5]), pack(up[6], up[7]));
}

#ifdef FORMAT
struct WidenArgs { const u8* weights; u16* out; int width, rows; };
static_assert(sizeof(WidenArgs) == SIZEOF_WidenArgs, "prompt.py fills another structure");

// A quantised matrix [rows][width] as bf16. A warp takes a block of weights.
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
