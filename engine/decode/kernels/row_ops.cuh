// A row's norm and the MLP's gate, eight values per thread. Part of batch.cu and prompt.cu.

static_assert(NORM_THREADS * 8 == HIDDEN, "a row has a block");

__device__ __forceinline__ void load8(float (&v)[8], const float* from) {
  const float4 a = *(const float4*)from, b = *(const float4*)(from + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
__device__ __forceinline__ void store8(float* to, const float (&v)[8]) {
  *(float4*)to = make_float4(v[0], v[1], v[2], v[3]);
  *(float4*)(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void add8(float (&v)[8], uint4 bf16s) {
  float w[8];
  unpack8(bf16s, w);
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] += w[k];
}

// h = RMSNorm(v) * weights, for a block's row. `weights` and `h` are this thread's eight.
__device__ __forceinline__ void norm_row(const float (&v)[8], uint4 weights, u16* h) {
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
  unpack8(weights, w);
  *(uint4*)h = make_uint4(pack(v[0] * f * w[0], v[1] * f * w[1]), pack(v[2] * f * w[2], v[3] * f * w[3]),
                          pack(v[4] * f * w[4], v[5] * f * w[5]), pack(v[6] * f * w[6], v[7] * f * w[7]));
}

struct SwigluArgs { const u16* gate_up; u16* act; int rows; };
static_assert(sizeof(SwigluArgs) == SIZEOF_SwigluArgs, "batch.py fills another structure");

__device__ __forceinline__ float gated(float gate, float up) { return up * (gate / (1.f + __expf(-gate))); }

// act = silu(gate) * up.
__device__ __forceinline__ void gate_rows(const SwigluArgs& s) {
  constexpr int WIDE = INTER / 8;
  const int i = blockIdx.x * SWIGLU_THREADS + threadIdx.x, row = i / WIDE, at = i % WIDE * 8;
  if (row >= s.rows) return;
  const u16* from = s.gate_up + (long long)row * (2 * INTER) + at;
  float gate[8], up[8];
  unpack8(*(const uint4*)from, gate);
  unpack8(*(const uint4*)(from + INTER), up);
#pragma unroll
  for (int k = 0; k < 8; ++k) up[k] = gated(gate[k], up[k]);
  *(uint4*)(s.act + (long long)row * INTER + at) =
      make_uint4(pack(up[0], up[1]), pack(up[2], up[3]), pack(up[4], up[5]), pack(up[6], up[7]));
}
