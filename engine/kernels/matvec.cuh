// Matrix times vector for one row of activations: each weight is read once, through the warp's ring. Part of decode.cu.

// Of `count` things, those from share(.., part, ..) to share(.., part + 1, ..) are a part's, give or take one.
__device__ __forceinline__ int share(int count, int part, int parts) { return (int)((long long)count * part / parts); }

// Pieces of a row of K weights: the fewest that are alike, whole lanes' loads, and no longer than PIECE.
__host__ __device__ constexpr int parts_of(int k) {
  int n = (k + PIECE - 1) / PIECE;
  while (k % n || k / n % LANE) ++n;
  return n;
}
__host__ __device__ constexpr int most(int rows, int parts) { return (rows + parts - 1) / parts; }
constexpr int OWN_ROWS = most(HIDDEN, BLOCKS);                  // of the residual stream, at most, a block
constexpr int WARP_ROWS = most(most(INTER, BLOCKS), WARPS);     // of gate or up, at most, a warp
constexpr int LONGEST = INTER > Q_ROWS ? INTER : Q_ROWS;
constexpr int MOST_PARTS = parts_of(INTER) > parts_of(Q_ROWS) ? parts_of(INTER) : parts_of(Q_ROWS);

// What of a matrix is a warp's: rows, or pieces of the block's rows. Contiguous: one stretch of the ring's.
struct Part { int first, count; };

struct Shared {
  Part parts[WARPS][5];      // a warp's, of qkv, out, gate and up, down, head
  Ring parked[WARPS];        // while attention has the registers
  u64 full[WARPS * SLOTS];
  uint4 x[HIDDEN / LANE];    // the normed input, packed bf16
  float own[OWN_ROWS];       // the block's rows of the residual stream
  float part[WARPS];
  float gate[WARPS][WARP_ROWS];
  __align__(16) float q[GROUP][DIM];
  __align__(16) u32 key[DIM / 2], value[DIM / 2];  // of the position that is new, packed bf16
  float m[WARPS][GROUP], l[WARPS][GROUP];
  union {
    float acc[WARPS][GROUP][DIM];
    struct { uint4 input[LONGEST / LANE]; float sums[OWN_ROWS * MOST_PARTS]; } project;  // input: packed bf16
  };
};
static_assert(sizeof(Shared) <= SHARED_ROOM, "the host leaves too little room beside the rings");

// RMSNorm of the residual stream into shared memory. The weights were loaded ahead: 8 a thread.
__device__ __forceinline__ uint4 norm_weights(const u16* weight) {
  return threadIdx.x < HIDDEN / LANE ? ((const uint4*)weight)[threadIdx.x] : make_uint4(0, 0, 0, 0);
}
__device__ __forceinline__ void norm_input(const Step& s, uint4 w, bool first, u32 round, Shared& sh) {
  const int t = threadIdx.x;
  float v[LANE] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (t < HIDDEN / LANE) {
    if (first) unpack8(((const uint4*)s.x_in)[t], v);
    else {
      uint4 a, b;
      receive8(s.x + t * LANE, round, a, b);
      v[0] = value_of(a.x); v[1] = value_of(a.y); v[2] = value_of(a.z); v[3] = value_of(a.w);
      v[4] = value_of(b.x); v[5] = value_of(b.y); v[6] = value_of(b.z); v[7] = value_of(b.w);
    }
  }
  float square = 0.f;
#pragma unroll
  for (int i = 0; i < LANE; ++i) square = fmaf(v[i], v[i], square);
  square = warp_sum(square);
  if ((t & 31) == 0) sh.part[t >> 5] = square;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; ++k) total += sh.part[k];
  const float f = rsqrtf(total * (1.f / HIDDEN) + EPS);
  if (t < HIDDEN / LANE)
    sh.x[t] =
        make_uint4(pack(v[0] * f * low(w.x), v[1] * f * high(w.x)), pack(v[2] * f * low(w.y), v[3] * f * high(w.y)),
                   pack(v[4] * f * low(w.z), v[5] * f * high(w.z)), pack(v[6] * f * low(w.w), v[7] * f * high(w.w)));
  __syncthreads();
}

// This lane's part of the product of a piece of N weights with as many inputs.
template <int N>
__device__ __forceinline__ float dot_piece(const uint4* w, const uint4* x) {
  constexpr int LANES = N / LANE;
  float even = 0.f, odd = 0.f;
#pragma unroll
  for (int c = 0; c < most(LANES, 32); ++c) {
    const int at = c * 32 + (threadIdx.x & 31);
    if (LANES % 32 == 0 || at < LANES) {
      const uint4 a = w[at], b = x[at];
      even = fmaf(low(a.x), low(b.x), even); odd = fmaf(high(a.x), high(b.x), odd);
      even = fmaf(low(a.y), low(b.y), even); odd = fmaf(high(a.y), high(b.y), odd);
      even = fmaf(low(a.z), low(b.z), even); odd = fmaf(high(a.z), high(b.z), odd);
      even = fmaf(low(a.w), low(b.w), even); odd = fmaf(high(a.w), high(b.w), odd);
    }
  }
  return even + odd;
}

// The warp's next `rows` rows of HIDDEN weights; done(j, sum) takes the product of each with the normed input.
template <class Done>
__device__ __forceinline__ void wide_rows(const Step& s, Ring& ring, int rows, const Shared& sh, Done done) {
  constexpr int PARTS = parts_of(HIDDEN), N = HIDDEN / PARTS;
#pragma unroll 1
  for (int j = 0; j < rows; ++j) {
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      sum += dot_piece<N>(take(ring), sh.x + part * (N / LANE));
      give(s, ring);
    }
    done(j, warp_sum(sum));
  }
}

// K bf16 values of other blocks into shared memory, packed.
template <int K>
__device__ __forceinline__ void projection_input(const u32* from, u32 round, Shared& sh) {
  for (int i = threadIdx.x; i < K / LANE; i += THREADS) {
    uint4 a, b;
    receive8(from + i * LANE, round, a, b);
    sh.project.input[i] = make_uint4(__byte_perm(a.x, a.y, 0x7632), __byte_perm(a.z, a.w, 0x7632),
                                     __byte_perm(b.x, b.y, 0x7632), __byte_perm(b.z, b.w, 0x7632));
  }
  __syncthreads();
}

// x += W @ input for the block's rows of W [HIDDEN, K], handed on as `round`, the one after the input's. A warp takes
// pieces [first, last) of them, counted from the block's first row; a row's pieces meet in shared memory.
template <int K>
__device__ __forceinline__ void project(const Step& s, Ring& ring, const u32* input, int first, int last, u32 round,
                                        Shared& sh) {
  constexpr int PARTS = parts_of(K), N = K / PARTS;
  const int lane = threadIdx.x & 31, base = share(HIDDEN, blockIdx.x, BLOCKS);
  const int rows = share(HIDDEN, blockIdx.x + 1, BLOCKS) - base;
  projection_input<K>(input, round - 1, sh);
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    float sum = dot_piece<N>(take(ring), sh.project.input + i % PARTS * (N / LANE));
    give(s, ring);
    sum = warp_sum(sum);
    if (lane == 0) sh.project.sums[i] = sum;
  }
  __syncthreads();
  for (int r = threadIdx.x; r < rows; r += THREADS) {
    float sum = sh.own[r];
    for (int k = 0; k < PARTS; ++k) sum += sh.project.sums[r * PARTS + k];
    sh.own[r] = sum;
    hand(s.x + base + r, word_of(sum, round));
  }
}
