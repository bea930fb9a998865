// Matrix times vector for one row of activations: weights stream through registers, once. Part of decode.cu.

// Rows [first, last) of an output that this block makes: all blocks get as many as one another, give or take one.
__device__ __forceinline__ int first_row(int rows, int block) { return (int)((long long)rows * block / gridDim.x); }

constexpr int LONGEST = INTER > Q_ROWS ? INTER : Q_ROWS;
constexpr int MAX_ROWS = 32;  // rows of a projection that meet in shared memory at a time

struct Shared {
  uint4 x[HIDDEN / LANE];  // the normed input, packed bf16
  float part[WARPS];
  float q[GROUP][DIM];
  float m[WARPS][GROUP], l[WARPS][GROUP];
  union {
    float acc[WARPS][GROUP][DIM];
    struct { uint4 input[LONGEST / LANE]; float sums[LONGEST / SLICE][MAX_ROWS]; } project;  // input: packed bf16
  };
  int last;
};

// RMSNorm of the residual stream into shared memory. The weights were loaded before the barrier: 8 a thread.
__device__ __forceinline__ uint4 norm_weights(const u16* weight) {
  return threadIdx.x < HIDDEN / LANE ? ((const uint4*)weight)[threadIdx.x] : make_uint4(0, 0, 0, 0);
}
__device__ __forceinline__ void norm_input(const Step& s, uint4 w, bool first, Shared& sh) {
  const int t = threadIdx.x;
  float4 a = make_float4(0, 0, 0, 0), b = a;
  if (t < HIDDEN / LANE) {
    if (first) {
      const uint4 v = ((const uint4*)s.x_in)[t];
      a = make_float4(low(v.x), high(v.x), low(v.y), high(v.y));
      b = make_float4(low(v.z), high(v.z), low(v.w), high(v.w));
    } else { a = fresh4(s.x + t * LANE); b = fresh4(s.x + t * LANE + 4); }
  }
  const float square = warp_sum(a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w + b.x * b.x + b.y * b.y + b.z * b.z +
                                b.w * b.w);
  if ((t & 31) == 0) sh.part[t >> 5] = square;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; ++k) total += sh.part[k];
  const float f = rsqrtf(total * (1.f / HIDDEN) + EPS);
  if (t < HIDDEN / LANE)
    sh.x[t] = make_uint4(pack(a.x * f * low(w.x), a.y * f * high(w.x)), pack(a.z * f * low(w.y), a.w * f * high(w.y)),
                         pack(b.x * f * low(w.z), b.y * f * high(w.z)), pack(b.z * f * low(w.w), b.w * f * high(w.w)));
  __syncthreads();
}

// A warp's rows of HIDDEN weights, one after another in halves, the next half's loads always under way. Row j is at
// where(j); done(j, sum) takes its product with the normed input. The first half may be loaded before the barrier.
struct Half { uint4 v[WIDE / 2]; };
__device__ __forceinline__ void load_half(Half& r, const u16* w, int half, bool real) {
#pragma unroll
  for (int c = 0; c < WIDE / 2; ++c)  // set in any case, so that no older value has to be kept
    r.v[c] = real ? stream16(w + (half * (WIDE / 2) + c) * SLICE + (threadIdx.x & 31) * LANE) : make_uint4(0, 0, 0, 0);
}
__device__ __forceinline__ float dot_half(const Half& r, int half, float sum, const Shared& sh) {
#pragma unroll
  for (int c = 0; c < WIDE / 2; ++c)
    sum = dot8(r.v[c], sh.x[(half * (WIDE / 2) + c) * 32 + (threadIdx.x & 31)], sum);
  return sum;
}
template <class Where, class Done>
__device__ __forceinline__ void wide_rows(Half& front, int rows, const Shared& sh, Where where, Done done) {
  Half back;
#pragma unroll 1
  for (int j = 0; j < rows; ++j) {
    load_half(back, where(j), 1, true);
    float sum = dot_half(front, 0, 0.f, sh);
    load_half(front, where(j + 1), 0, j + 1 < rows);
    sum = dot_half(back, 1, sum, sh);
    done(j, warp_sum(sum));
  }
}

// x += W @ input for the block's rows of W [HIDDEN, K]. A warp takes slices of K for a group of the rows; the groups
// are as many as make the warps' shares even. Sums meet in shared memory.
template <int K>
struct Projection {
  static constexpr int SLICES = K / SLICE;
  static constexpr int GROUPS = SLICES % WARPS == 0 ? 1 : SLICES * 2 % WARPS == 0 || SLICES > 24 ? 2 : 4;
  static constexpr int TASKS = SLICES * GROUPS, TILE = ROW_TILE;
  uint4 v[TILE];
  int base, end, rows;

  __device__ __forceinline__ int from(int group) const { return base + rows * group / GROUPS; }
  __device__ __forceinline__ void load(uint4* to, const u16* w, int task, int tile) const {
    const int group = task / SLICES, last = from(group + 1);
    const u16* at = w + (task % SLICES) * SLICE + (threadIdx.x & 31) * LANE;
#pragma unroll
    for (int t = 0; t < TILE; ++t) {
      const int row = from(group) + tile * TILE + t;
      to[t] = row < last ? stream16(at + (long long)row * K) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void begin(const u16* w) {
    base = first_row(HIDDEN, blockIdx.x);
    end = first_row(HIDDEN, blockIdx.x + 1);
    rows = min(MAX_ROWS, end - base);
    load(v, w, threadIdx.x >> 5, 0);
  }
  // 8 sums over the warp in 9 shuffles: lane 4 * i ends up with the i-th, bits of i reversed.
  static __device__ __forceinline__ float scatter_sum(float* f) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 16, n = 4; n; o >>= 1, n >>= 1)
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const bool up = lane & o;
        const float keep = up ? f[i + n] : f[i], send = up ? f[i] : f[i + n];
        f[i] = keep + __shfl_xor_sync(~0u, send, o);
      }
    f[0] += __shfl_xor_sync(~0u, f[0], 2);
    return f[0] + __shfl_xor_sync(~0u, f[0], 1);
  }
  __device__ __forceinline__ void add(const Step& s, const u16* w, const float* input, bool first, Shared& sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int slot = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
#pragma unroll
    for (int i = threadIdx.x; i < K / LANE; i += THREADS) {
      const float4 a = fresh4(input + i * LANE), b = fresh4(input + i * LANE + 4);
      sh.project.input[i] = make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
    }
    __syncthreads();
    for (;;) {
#pragma unroll 1
      for (int task = warp; task < TASKS; task += WARPS) {
        const int slice = task % SLICES, group = task / SLICES;
        const uint4 x = sh.project.input[slice * 32 + lane];
        const int count = from(group + 1) - from(group);
#pragma unroll 1
        for (int tile = 0; tile * TILE < count; ++tile) {
          uint4 next[TILE];
          const bool more = (tile + 1) * TILE < count;
          load(next, w, more ? task : min(task + WARPS, TASKS - 1), more ? tile + 1 : task + WARPS < TASKS ? 0 : 99);
          float f[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
          for (int t = 0; t < TILE; ++t) f[t] = dot8(v[t], x, 0.f);
          const float sum = scatter_sum(f);
          const int row = from(group) - base + tile * TILE + slot;
          if ((lane & 3) == 0 && slot < TILE && tile * TILE + slot < count) sh.project.sums[slice][row] = sum;
#pragma unroll
          for (int t = 0; t < TILE; ++t) v[t] = next[t];
        }
      }
      __syncthreads();
      for (int r = threadIdx.x; r < rows; r += THREADS) {
        float sum = first ? bf16(s.x_in[base + r]) : fresh(s.x + base + r);
        for (int k = 0; k < SLICES; ++k) sum += sh.project.sums[k][r];
        s.x[base + r] = sum;
      }
      base += rows;
      if (base >= end) return;
      rows = min(MAX_ROWS, end - base);
      __syncthreads();
      load(v, w, warp, 0);
    }
  }
};
