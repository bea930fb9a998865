// Decode pass for up to 64 rows, between the matrix products: norms, attention, the MLP's gate. With quantised weights,
// also the products (batch_product.cuh).
//
// "Row" is a row of the batch. Each row is computed independently, in an order that depends only on its own position,
// so its result does not depend on the other rows or their number. Residual stream and sums are fp32; products read
// bf16.
// Compile-time: HIDDEN, HEADS, KV_HEADS, INTER, EPS, HAS_QK_NORM; PADDED_ROWS, rows of a product; SPLIT_K, products
// that sum to a delta; MIN_SPLIT, positions per KV split, doubled until MAX_SPLITS suffice; BLOCKS_PER_SM of `attend`;
// NORM_THREADS, SWIGLU_THREADS and ATTEND_THREADS per block. With quantised weights also FORMAT; ROW_TILES, tiles of 8
// rows; PRODUCTS, a list of PRODUCT(tiles, steps in flight), and MAX_TILES, its maximum tiles; PRODUCT_THREADS and
// PRODUCT_SHARED, threads and bytes of shared memory per block.

#include "load.cuh"
#include "mma_tile.cuh"
#include "attention_prologue.cuh"
#include "batch_attention.cuh"
#ifdef FORMAT
#include "weight_format.cuh"
#include "batch_product.cuh"
#endif

struct AddNormArgs { const u16 *x_in, *delta, *weight; float* x; u16* h; };  // x_in: null except in the first layer
static_assert(sizeof(AddNormArgs) == SIZEOF_AddNormArgs, "batch.py fills another structure");
static_assert(NORM_THREADS * 8 == HIDDEN && PADDED_ROWS <= 64, "a row has a block; rows have two places a lane");

// x = x_in, or x += delta, the sum of SPLIT_K products; h = RMSNorm(x) * weight. One block per row, 8 values a thread.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) add_norm(const AddNormArgs s) {
  __shared__ float squares[HIDDEN / 256];
  const int t = threadIdx.x;
  const long long at = (long long)blockIdx.x * HIDDEN + t * 8;
  const uint4 weights = *(const uint4*)(s.weight + t * 8);
  launch_dependent_grids();
  wait_on_dependent_grids();
  float v[8], w[8];
  if (s.x_in) {
    unpack8(*(const uint4*)(s.x_in + at), v);
  } else {
    const float4 a = *(const float4*)(s.x + at), b = *(const float4*)(s.x + at + 4);
    uint4 delta[SPLIT_K];
#pragma unroll
    for (int i = 0; i < SPLIT_K; ++i) delta[i] = *(const uint4*)(s.delta + (long long)i * PADDED_ROWS * HIDDEN + at);
    v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
#pragma unroll
    for (int i = 0; i < SPLIT_K; ++i) {
      unpack8(delta[i], w);
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] += w[k];
    }
  }
  *(float4*)(s.x + at) = make_float4(v[0], v[1], v[2], v[3]);
  *(float4*)(s.x + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
  float square = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) square = fmaf(v[i], v[i], square);
  square = warp_sum(square);
  if ((t & 31) == 0) squares[t >> 5] = square;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < HIDDEN / 256; ++i) total += squares[i];
  const float f = rsqrtf(total * (1.f / HIDDEN) + EPS);
  unpack8(weights, w);
  *(uint4*)(s.h + at) = make_uint4(pack(v[0] * f * w[0], v[1] * f * w[1]), pack(v[2] * f * w[2], v[3] * f * w[3]),
                                   pack(v[4] * f * w[4], v[5] * f * w[5]), pack(v[6] * f * w[6], v[7] * f * w[7]));
}

struct SwigluArgs { const u16* gate_up; u16* act; int rows; };
static_assert(sizeof(SwigluArgs) == SIZEOF_SwigluArgs, "batch.py fills another structure");

// act = silu(gate) * up. 8 values per thread.
extern "C" __global__ void __launch_bounds__(SWIGLU_THREADS) swiglu(const SwigluArgs s) {
  launch_dependent_grids();
  wait_on_dependent_grids();
  constexpr int WIDE = INTER / 8;
  const int i = blockIdx.x * SWIGLU_THREADS + threadIdx.x, row = i / WIDE, at = i % WIDE * 8;
  if (row >= s.rows) return;
  const u16* from = s.gate_up + (long long)row * (2 * INTER) + at;
  float gate[8], up[8];
  unpack8(*(const uint4*)from, gate);
  unpack8(*(const uint4*)(from + INTER), up);
#pragma unroll
  for (int k = 0; k < 8; ++k) up[k] *= gate[k] / (1.f + __expf(-gate[k]));
  *(uint4*)(s.act + (long long)row * INTER + at) =
      make_uint4(pack(up[0], up[1]), pack(up[2], up[3]), pack(up[4], up[5]), pack(up[6], up[7]));
}

struct AttendArgs {
  const u16 *qkv, *qk_norm, *cos, *sin;
  u16 *keys, *values;         // of one layer: [rows][KV_HEADS][max_seq_len][DIM]
  const long long* position;  // [rows]: slot of this step's key and value
  u16* attended;
  float* partial_o;           // these three: `Workspace` of each row and KV head, [rows][KV_HEADS][...]
  float2* partial_ml;
  u32* arrived;               // zero between launches
  int rows, max_seq_len, max_splits;
};
static_assert(sizeof(AttendArgs) == SIZEOF_AttendArgs, "batch.py fills another structure");

// Flash-decoding. Work items are (row, split, KV head); a block derives an item's row from the lengths of all rows.
extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, BLOCKS_PER_SM) attend(const AttendArgs s) {
  __shared__ Shared sh;
  launch_dependent_grids();
  wait_on_dependent_grids();
  const SplitCounts splits = count_splits(s.position, s.rows);
  clear_queries(sh);
  for (int item = blockIdx.x; item < splits.total * KV_HEADS; item += gridDim.x) {
    const Split a = split_of(splits, item);
    const long long head = (long long)a.row * KV_HEADS + a.kv;
    u16 *keys = s.keys + head * s.max_seq_len * DIM, *values = s.values + head * s.max_seq_len * DIM;
    u16* attended = s.attended + (long long)a.row * Q_SIZE + a.kv * GROUP * DIM;
    Tile tile;
    load_keys(tile, keys, a, first_tile(a));
    load_values(tile, values, a, first_tile(a));
    place_qkv(a, s.qkv + (long long)a.row * QKV_SIZE, s.qk_norm, s.cos, s.sin, keys, values, sh);
    Partial result = combine_warps(attend_split(a, tile, keys, values, sh), sh);
    const bool has_query = threadIdx.x < GROUP * 32;
    if (a.count > 1) {
      const Workspace workspace = {s.partial_o + head * s.max_splits * (GROUP * DIM),
                                   s.partial_ml + head * (GROUP * MAX_SPLITS), s.arrived + head};
      if (has_query) write_partial(a, result, workspace);
      if (!last_to_arrive(workspace, a.count, sh)) continue;
      if (has_query) result = combine_splits(a, workspace);
    }
    if (has_query) write_output(result, attended);
  }
}
