// Decode pass of a batch, between the matrix products: norms, attention, the MLP's gate. Also the products with
// quantised weights (batch_product.cuh), and on Hopper with bf16, int8 or int4 weights (batch_dense.cuh).
//
// "Row" is a row of the batch. Each row is computed independently, in an order that depends only on its own position,
// so its result does not depend on the other rows or their number. Residual stream and sums are fp32; products read
// bf16.
// Compile-time: HIDDEN, HEADS, KV_HEADS, INTER, EPS, HAS_QK_NORM; PADDED_ROWS, rows of a product; QKV_PARTS and
// DELTA_PARTS, products that sum to a qkv and to a delta; MIN_SPLIT, positions per KV split, doubled until MAX_SPLITS
// suffice; BLOCKS_PER_SM of `attend`; NORM_THREADS, SWIGLU_THREADS and ATTEND_THREADS per block. With products also
// FORMAT; ROW_TILES, tiles of 8 rows; PRODUCTS: with DENSE, on Hopper, a list of PRODUCT(kernel, features, warpgroups,
// stages, gated), else of PRODUCT(tiles, steps in flight), and then MAX_TILES, its maximum tiles, and PRODUCT_THREADS
// and PRODUCT_SHARED, threads and bytes of shared memory per block.

#include "load.cuh"
#include "mma_tile.cuh"
#include "attention_prologue.cuh"
#include "batch_attention.cuh"
#include "row_ops.cuh"
#ifdef FORMAT
#include "weight_format.cuh"
#endif
#ifdef DENSE
#include "batch_dense.cuh"
#elif defined(FORMAT)
#include "batch_product.cuh"
#endif

struct AddNormArgs { const u16 *x_in, *delta, *weight; float* x; u16* h; };  // x_in: null except in the first layer
static_assert(sizeof(AddNormArgs) == SIZEOF_AddNormArgs, "batch.py fills another structure");
static_assert(PADDED_ROWS % 32 == 0, "every lane holds as many rows");

// x = x_in, or x += delta, the sum of DELTA_PARTS products; h = RMSNorm(x) * weight. One block per row, 8 values a thread.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) add_norm(const AddNormArgs s) {
  const long long at = (long long)blockIdx.x * HIDDEN + threadIdx.x * 8;
  const uint4 weights = *(const uint4*)(s.weight + threadIdx.x * 8);
  launch_dependent_grids();
  wait_on_dependent_grids();
  float v[8];
  if (s.x_in) {
    unpack8(*(const uint4*)(s.x_in + at), v);
  } else {
    uint4 delta[DELTA_PARTS];
    load8(v, s.x + at);
#pragma unroll
    for (int i = 0; i < DELTA_PARTS; ++i)
      delta[i] = *(const uint4*)(s.delta + (long long)i * PADDED_ROWS * HIDDEN + at);
#pragma unroll
    for (int i = 0; i < DELTA_PARTS; ++i) add8(v, delta[i]);
  }
  store8(s.x + at, v);
  norm_row(v, weights, s.h + at);
}

extern "C" __global__ void __launch_bounds__(SWIGLU_THREADS) swiglu(const SwigluArgs s) {
  launch_dependent_grids();
  wait_on_dependent_grids();
  gate_rows(s);
}

struct AttendArgs {
  const u16 *qkv, *qk_norm, *cos, *sin;
  u16 *keys, *values;         // of one layer: [rows][KV_HEADS][max_seq_len][DIM]
  const long long* position;  // [rows]: slot of this step's key and value
  const u8* done;             // [rows]: finished, so not attended
  u16* attended;
  float* partial_o;           // these three: `Workspace` of each row and KV head, [rows][KV_HEADS][...]
  float2* partial_ml;
  u32* arrived;               // zero between launches
  u16* queries;               // of the heads to be kept, [n][rows][max_seq_len][DIM]
  u64 query_heads;            // a bit for each of these n heads
  int rows, max_seq_len, max_splits;
};
static_assert(sizeof(AttendArgs) == SIZEOF_AttendArgs, "batch.py fills another structure");

// Flash-decoding. Work items are (row, split, KV head); a block derives an item's row from the lengths of all rows.
extern "C" __global__ void __launch_bounds__(ATTEND_THREADS, BLOCKS_PER_SM) attend(const AttendArgs s) {
  __shared__ Shared sh;
  launch_dependent_grids();
  const SplitCounts splits = count_splits(s.position, s.done, s.rows);
  clear_queries(sh);
  for (int item = blockIdx.x; item < splits.total * KV_HEADS; item += gridDim.x) {
    const Split a = split_of(splits, item);
    const long long head = (long long)a.row * KV_HEADS + a.kv;
    u16 *keys = s.keys + head * s.max_seq_len * DIM, *values = s.values + head * s.max_seq_len * DIM;
    u16* attended = s.attended + (long long)a.row * Q_SIZE + a.kv * GROUP * DIM;
    Tile tile;
    load_keys(tile, keys, a, first_tile(a));
    load_values(tile, values, a, first_tile(a));
    wait_on_dependent_grids();  // of what this kernel reads, only qkv comes from them
    const u16* qkv = s.qkv + (long long)a.row * QKV_SIZE;
    place_qkv(a, qkv, s.qk_norm, s.cos, s.sin, keys, values, sh);
    if (s.query_heads && a.index == 0) keep_queries(a, s.queries, s.query_heads, s.rows, s.max_seq_len, sh);
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
  wait_on_dependent_grids();  // blocks without items too: the next kernel waits for this one only
}
