// Widths, arguments, loads and the grid barrier of decode.cu.

typedef unsigned int u32;
typedef unsigned short u16;

constexpr int DIM = 128, GROUP = HEADS / KV_HEADS, WARPS = 16, THREADS = WARPS * 32;
constexpr int Q_ROWS = HEADS * DIM, KV_ROWS = KV_HEADS * DIM, QKV_ROWS = Q_ROWS + 2 * KV_ROWS;
constexpr int MAX_SPLITS = 32, LANE = 8, SLICE = 32 * LANE;  // a lane reads 16 bytes, a warp one slice of a weight row
constexpr int WIDE = HIDDEN / SLICE;  // slices of a row of HIDDEN weights

struct LayerWeights { const u16 *attn_norm, *qkv, *qk_norm, *out, *mlp_norm, *gate_up, *down; };

struct Step {
  const LayerWeights* layers;
  const u16 *x_in, *head, *norm, *cos, *sin;
  u16 *keys, *values;           // [layers][KV_HEADS][slots][DIM], this row's part; layer stride below
  const long long* position;    // where this step's key and value go
  float *x, *qkv, *attended, *act, *partial, *logits;
  u32 *arrivals, *start, *arrived;  // start: arrivals when the kernel began; arrived: one counter a kv head
  long long layer_stride;
  int layer_count, slots;
};

__device__ __forceinline__ float low(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float bf16(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u32 to_bf16(float v) {  // round to nearest even; inputs are finite
  u32 b = __float_as_uint(v);
  return (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}
__device__ __forceinline__ u32 pack(float a, float b) { return to_bf16(a) | (to_bf16(b) << 16); }

__device__ __forceinline__ uint4 stream16(const void* p) {  // read once: no place in L1
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float4 fresh4(const float* p) {  // written by other blocks: from L2, never from L1
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float fresh(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint4 cached16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float dot8(uint4 w, uint4 x, float sum) {
  sum = fmaf(low(w.x), low(x.x), sum); sum = fmaf(high(w.x), high(x.x), sum);
  sum = fmaf(low(w.y), low(x.y), sum); sum = fmaf(high(w.y), high(x.y), sum);
  sum = fmaf(low(w.z), low(x.z), sum); sum = fmaf(high(w.z), high(x.z), sum);
  sum = fmaf(low(w.w), low(x.w), sum); return fmaf(high(w.w), high(x.w), sum);
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// All blocks wait for each other, in two halves so that loads can start between them. The counter only grows, from
// launch to launch too, and is compared by its distance, so it may wrap around.
__device__ __forceinline__ void arrive(const Step& s) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(s.arrivals) : "memory");
}
__device__ __forceinline__ void wait(const Step& s, u32& round) {
  round += gridDim.x;
  if (threadIdx.x == 0) {
    u32 now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(s.arrivals) : "memory");
    while ((int)(now - round) < 0);
  }
  __syncthreads();
}
