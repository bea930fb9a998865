// Matrix times vector for one row of activations: each weight is read once, through the warp's ring. Part of single.cu.

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
  uint4 x[HIDDEN / LANE];    // what norm_input makes, packed bf16
  float own[OWN_ROWS];       // the block's rows of the residual stream
  __align__(16) float part[WARPS];  // of the sum of the stream's squares
  float gate[WARPS][WARP_ROWS];
  __align__(16) float q[GROUP][DIM];
  __align__(16) u32 key[DIM / 2], value[DIM / 2];  // of the position that is new, packed bf16
  float m[WARPS][GROUP], l[WARPS][GROUP];
  union {
    float acc[WARPS][GROUP][DIM];
    struct { uint4 input[LONGEST / LANE]; float sums[OWN_ROWS * MOST_PARTS]; } project;  // input: packed bf16
  };
};
static_assert(sizeof(Shared) + sizeof(u64) * WARPS * RING <= SHARED_ROOM, "too little room is left beside the rings");

// The residual stream times the norm's weights into shared memory, packed, and the sum of its squares: RMSNorm but for
// its scale, which the products are multiplied by. The weights were loaded ahead, 4 a thread, then again 4.
constexpr int NORM_LOADS = most(HIDDEN / 4, THREADS);
struct NormWeights { uint2 of[NORM_LOADS]; };
__device__ __forceinline__ NormWeights norm_weights(const u16* weight) {
  NormWeights w;
  const int t = thread_anew();
#pragma unroll
  for (int j = 0; j < NORM_LOADS; ++j) w.of[j] = ((const uint2*)weight)[min(j * THREADS + t, HIDDEN / 4 - 1)];
  return w;
}
__device__ __forceinline__ void norm_input(const SingleArgs& s, const NormWeights& w, bool first, u32 round, Shared& sh) {
  uint4 words[NORM_LOADS];
  if (!first) look_at(words, s.x, HIDDEN / 4);
  float square = 0.f;
  const int t = thread_anew();
#pragma unroll
  for (int j = 0; j < NORM_LOADS; ++j) {
    const int i = j * THREADS + t;
    if (i >= HIDDEN / 4) continue;
    float4 v;
    if (first) {
      const uint2 x = ((const uint2*)s.x_in)[i];
      v = make_float4(low(x.x), high(x.x), low(x.y), high(x.y));
    } else {
      v = received(words[j], s.x + i * 4, round);
    }
    square = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, square))));
    ((uint2*)sh.x)[i] = make_uint2(pack(v.x * low(w.of[j].x), v.y * high(w.of[j].x)),
                                   pack(v.z * low(w.of[j].y), v.w * high(w.of[j].y)));
  }
  square = warp_sum(square);
  if ((threadIdx.x & 31) == 0) sh.part[threadIdx.x >> 5] = square;
  __syncthreads();
}
__device__ __forceinline__ float norm_scale(const Shared& sh) {  // added up for each row: kept, it would spill
  float total = 0.f;
#pragma unroll
  for (int k = 0; k < WARPS; ++k) total += sh.part[k];
  return rsqrtf(total * (1.f / HIDDEN) + EPS);
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
__device__ __forceinline__ void wide_rows(const SingleArgs& s, Ring& ring, int rows, const Shared& sh, Done done) {
  constexpr int PARTS = parts_of(HIDDEN), N = HIDDEN / PARTS;
#pragma unroll 1
  for (int j = 0; j < rows; ++j) {
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      sum += dot_piece<N>(take(ring), sh.x + part * (N / LANE));
      give(s, ring);
    }
    done(j, norm_scale(sh) * warp_sum(sum));
  }
}

// K bf16 values of other blocks into shared memory, packed.
template <int K>
__device__ __forceinline__ void projection_input(const u32* from, u32 round, Shared& sh) {
  constexpr int LOADS = most(K / 4, THREADS);
  uint4 words[LOADS];
  look_at(words, from, K / 4);
  const int t = thread_anew();
#pragma unroll
  for (int j = 0; j < LOADS; ++j) {
    const int i = j * THREADS + t;
    if (i >= K / 4) continue;
    while (missing(words[j], round)) words[j] = look(from + i * 4);
    ((uint2*)sh.project.input)[i] =
        make_uint2(__byte_perm(words[j].x, words[j].y, 0x7632), __byte_perm(words[j].z, words[j].w, 0x7632));
  }
  __syncthreads();
}

// x += W @ input for the block's rows of W [HIDDEN, K], counted and handed on as `round`, the one after the input's. A
// warp takes pieces [first, last) of them, counted from the block's first row; a row's pieces meet in shared memory.
template <int K>
__device__ __forceinline__ void project(const SingleArgs& s, Ring& ring, const u32* input, int first, int last, u32 round,
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
  arrive(s);  // the count may run ahead of the values, for readers look at those too
  for (int r = threadIdx.x; r < rows; r += THREADS) {
    float sum = sh.own[r];
    for (int k = 0; k < PARTS; ++k) sum += sh.project.sums[r * PARTS + k];
    sh.own[r] = sum;
    hand(s.x + base + r, word_of(sum, round));
  }
}
