// Mock-up of a decode step for one row: the weights of every layer stream through a warp's pipeline as in single.cu,
// and blocks exchange what a layer's products hand on. Nothing is multiplied. Run by clusters.py.
//
// Compile-time: BLOCKS, grid size; CLUSTER, blocks of a cluster, 1 for none; PREFETCH, tiles in flight a warp.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARPS = 16, THREADS = WARPS * 32, TILE = 2560, STAGES = PREFETCH + 1, STRAGGLERS = 8;
constexpr int HIDDEN = 2560, HEADS = 32, KV_HEADS = 8, DIM = 128, INTER = 9728;  // Higgs TTS 3
constexpr int QUERY = HEADS * DIM, KEY_VALUE = 2 * KV_HEADS * DIM;
constexpr int CLUSTERS = BLOCKS / CLUSTER, OWN_HEADS = HEADS / CLUSTERS;
constexpr int OWN = HIDDEN / CLUSTER;  // outputs of a block
constexpr bool CLUSTERED = CLUSTER > 1;
constexpr u32 MOST_POLLS = 1 << 22;
enum Phase { QKV, OUT, GATE_UP, DOWN, PHASES };
enum Scheme { NONE, TODAY, KEYS_TWICE, KEYS_HANDED_OVER };  // exchanges of a layer

struct Args {
  const u8* weights;  // [layers][LAYER_TILES * TILE]
  u32 *words, *arrivals;  // exchanged words; counts of arrivals: all blocks', then one for each rank in a cluster
  u32 *stalled, *errors, *sink;
  int layers, scheme, streams;  // streams: 0 leaves the weights out
};

constexpr int ROW_TILES = HIDDEN * 2 / TILE;
constexpr int QUERY_TILES = QUERY * ROW_TILES, KEY_VALUE_TILES = KEY_VALUE * ROW_TILES;
constexpr int FIRST[PHASES + 1] = {0, QUERY_TILES + KEY_VALUE_TILES, QUERY_TILES * 2 + KEY_VALUE_TILES,
                                   QUERY_TILES * 2 + KEY_VALUE_TILES + 2 * INTER * ROW_TILES,
                                   QUERY_TILES * 2 + KEY_VALUE_TILES + 3 * INTER * ROW_TILES};  // tiles of a layer
static_assert(QUERY * HIDDEN * 2 / TILE == QUERY_TILES, "the out product is as large as the queries' part");

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ int range_start(int count, int i, int n) { return (int)((long long)count * i / n); }
__device__ __forceinline__ u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 poll(const u32* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void publish(u32* to, float v, u32 epoch) {
  const u32 word = (__float_as_uint(v) & ~0xffu) | (epoch & 0xffu);
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ float value(u32 word) { return __uint_as_float(word & ~0xffu); }
__device__ __forceinline__ bool stale(uint4 w, u32 epoch) {
  return ((w.x ^ epoch) | (w.y ^ epoch) | (w.z ^ epoch) | (w.w ^ epoch)) & 0xffu;
}
__device__ __forceinline__ bool give_up(const Args& s, u32& polls) {
  if (++polls % 1024 || (polls < MOST_POLLS && !load_relaxed(s.stalled))) return false;
  *(volatile u32*)s.stalled = 1;
  return true;
}

// Weights: a warp's tiles of all phases and layers, in order.
struct Pipeline { u32 issued, released; int layer, phase, left; const u8* at; };
__device__ __forceinline__ u8* tile_at(u32 n) {
  extern __shared__ __align__(128) u8 stages[];
  return stages + ((threadIdx.x >> 5) * STAGES + n % STAGES) * TILE;
}
__device__ __forceinline__ u32 full_barrier(u32 n) {
  __shared__ u64 full[WARPS * STAGES];
  return shared_address(full + (threadIdx.x >> 5) * STAGES + n % STAGES);
}
// The warp's tiles of a phase: first, counted in the layer, and how many.
__device__ __forceinline__ int2 warp_tiles(int scheme, int phase) {
  const bool twice = phase == QKV && scheme == KEYS_TWICE;
  const int all = twice ? QUERY_TILES + 2 * KEY_VALUE_TILES : FIRST[phase + 1] - FIRST[phase];
  const int base = range_start(all, blockIdx.x, BLOCKS), owned = range_start(all, blockIdx.x + 1, BLOCKS) - base;
  const int warp = threadIdx.x >> 5, from = range_start(owned, warp, WARPS);
  const int count = range_start(owned, warp + 1, WARPS) - from;
  if (!twice) return make_int2(FIRST[phase] + base + from, count);
  // Two clusters read the same keys and values.
  constexpr int OF_CLUSTER = (QUERY_TILES + 2 * KEY_VALUE_TILES) / CLUSTERS, QUERIES = QUERY_TILES / CLUSTERS;
  const int cluster = blockIdx.x / CLUSTER, in = base + from - cluster * OF_CLUSTER;
  if (in < QUERIES) return make_int2(cluster * QUERIES + in, count);
  return make_int2(QUERY_TILES + cluster / 2 * (OF_CLUSTER - QUERIES) + in - QUERIES, count);
}
__device__ __forceinline__ void issue(const Args& s, Pipeline& p) {
  while (p.left == 0 && p.layer < s.layers) {
    if (++p.phase == PHASES) { p.phase = QKV; ++p.layer; }
    const int2 mine = warp_tiles(s.scheme, p.phase);
    p.left = p.layer < s.layers ? mine.y : 0;
    p.at = s.weights + ((long long)p.layer * FIRST[PHASES] + mine.x) * TILE;
  }
  if (p.left) {
    if ((threadIdx.x & 31) == 0) {
      const u32 barrier = full_barrier(p.issued);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(TILE) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(tile_at(p.issued))), "l"(p.at), "r"(TILE), "r"(barrier) : "memory");
    }
    p.at += TILE;
    --p.left;
  }
  ++p.issued;
}
__device__ __forceinline__ Pipeline start_pipeline(const Args& s) {
  Pipeline p = {0, 0, 0, -1, 0, nullptr};
  if (!s.streams) return p;
  if ((threadIdx.x & 31) == 0) {
    for (int i = 0; i < STAGES; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full_barrier(i)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncwarp();
  for (int i = 0; i < PREFETCH; ++i) issue(s, p);
  return p;
}
__device__ __forceinline__ u32 consume(const Args& s, Pipeline& p, int phase) {
  u32 sum = 0;
  if (!s.streams) return sum;
  const int count = warp_tiles(s.scheme, phase).y;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    u32 done;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                    : "=r"(done) : "r"(full_barrier(p.released)), "r"(p.released / STAGES & 1) : "memory");
    while (!done);
    const uint4* tile = (const uint4*)tile_at(p.released);
#pragma unroll
    for (int j = 0; j < TILE / 512; ++j) {
      const uint4 v = tile[j * 32 + (threadIdx.x & 31)];
      sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    __syncwarp();
    ++p.released;
    issue(s, p);
  }
  return sum;
}

// Exchanges between all blocks, as in exchange.cuh.
__device__ __forceinline__ void arrive(u32* count) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ __forceinline__ void wait_arrivals(const Args& s, const u32* count, u32 least) {
  u32 polls = 0;
  if (threadIdx.x == 0)
    while ((int)(load_relaxed(count) - least) < 0 && !give_up(s, polls)) {}
  __syncthreads();
}
// Receives `count` words of `epoch` into shared memory, if given.
__device__ __forceinline__ void receive(const Args& s, const u32* from, int count, u32 epoch, float* to) {
  for (int i = threadIdx.x; i < count / 4; i += THREADS) {
    uint4 w = poll(from + i * 4);
    for (u32 polls = 0; stale(w, epoch) && !give_up(s, polls);) w = poll(from + i * 4);
    if (to) *(float4*)(to + i * 4) = make_float4(value(w.x), value(w.y), value(w.z), value(w.w));
  }
  __syncthreads();
}
// `writers` blocks publish all words, `readers` blocks read `read` of them.
__device__ __forceinline__ void exchange(const Args& s, u32* words, int count, int writers, int readers, int read,
                                         u32 epoch) {
  if (blockIdx.x < writers) {
    const int base = range_start(count, blockIdx.x, writers), end = range_start(count, blockIdx.x + 1, writers);
    for (int i = base + threadIdx.x; i < end; i += THREADS) publish(words + i, (float)(i % 7), epoch);
  }
  arrive(s.arrivals);
  if (blockIdx.x >= readers) return;
  wait_arrivals(s, s.arrivals, epoch * BLOCKS - STRAGGLERS);
  receive(s, words, read, epoch, nullptr);
}

// Exchanges inside a cluster, through its blocks' shared memory.
__device__ __forceinline__ void cluster_barrier() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Each block hands `own` values, from its own shared memory, to all of its cluster: `all` is [CLUSTER * own] there.
__device__ __forceinline__ void gather(const float* mine, int own, float* all) {
  const u32 rank = blockIdx.x % CLUSTER, at = shared_address(all + rank * own);
  for (int i = threadIdx.x; i < own * CLUSTER; i += THREADS) {
    const int to = i / own, j = i % own;
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at + j * 4), "r"(to));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(mine[j]) : "memory");
  }
  cluster_barrier();
}
// A block publishes its cluster's partial sums of its OWN outputs, adds those of all clusters in order, and gathers x.
__device__ __forceinline__ void sum_partials(const Args& s, u32* words, u32 epoch, float* partials, float* mine,
                                             float* x) {
  const int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  words += rank * CLUSTERS * OWN;
  for (int i = threadIdx.x; i < OWN; i += THREADS)
    publish(words + cluster * OWN + i, (cluster + 1.f) * (i % 7 + 1), epoch);
  arrive(s.arrivals + 32 * (1 + rank));  // counts on cache lines of their own
  wait_arrivals(s, s.arrivals + 32 * (1 + rank), epoch * CLUSTERS - 1);
  receive(s, words, CLUSTERS * OWN, epoch, partials);
  for (int i = threadIdx.x; i < OWN; i += THREADS) {
    float sum = 0.f;
    for (int c = 0; c < CLUSTERS; ++c) sum += partials[c * OWN + i];
    mine[i] = sum;
  }
  __syncthreads();
  gather(mine, OWN, x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) mock_step(const Args s) {
  __shared__ __align__(16) float partials[CLUSTERED ? CLUSTERS * OWN : 1], mine[CLUSTERED ? OWN : 1];
  __shared__ float x[2][CLUSTERED ? HIDDEN : 1], own[2][CLUSTERED ? INTER / CLUSTERS : 1];
  Pipeline pipeline = start_pipeline(s);
  const bool clustered = CLUSTERED && s.scheme >= KEYS_TWICE;
  if constexpr (CLUSTERED) {
    for (int i = threadIdx.x; i < OWN; i += THREADS) mine[i] = 0.f;
    cluster_barrier();  // no block may write into one that has not begun
  }
  u32 sum = 0, epoch = 0;
  u32 *x_words = s.words, *qkv_words = s.words + 65536, *attended_words = s.words + 131072;
  u32* act_words = s.words + 196608;
#pragma unroll 1
  for (int layer = 0; layer < s.layers; ++layer, epoch += 5) {
    sum ^= consume(s, pipeline, QKV);
    if (s.scheme == TODAY) {
      exchange(s, qkv_words, QUERY + KEY_VALUE, BLOCKS, HEADS, 3 * DIM, epoch + 1);
      exchange(s, attended_words, QUERY, HEADS, BLOCKS, QUERY, epoch + 2);
    } else if (clustered) {
      gather(mine, (OWN_HEADS + 2) * DIM / CLUSTER, own[0]);
      if (s.scheme == KEYS_HANDED_OVER && CLUSTERS > KV_HEADS) {  // the key or the value, to the pair's other cluster
        const int cluster = blockIdx.x / CLUSTER;
        if (blockIdx.x % CLUSTER == 0 && threadIdx.x < DIM)
          publish(qkv_words + cluster * DIM + threadIdx.x, 1.f, layer + 1);
        receive(s, qkv_words + (cluster ^ 1) * DIM, DIM, layer + 1, own[1]);
      }
      gather(mine, OWN_HEADS * DIM / CLUSTER, own[1]);
    }
    sum ^= consume(s, pipeline, OUT);
    if (s.scheme == TODAY) exchange(s, x_words, HIDDEN, BLOCKS, BLOCKS, HIDDEN, epoch + 3);
    else if (clustered) sum_partials(s, x_words, 2 * layer + 1, partials, mine, x[0]);
    sum ^= consume(s, pipeline, GATE_UP);
    if (s.scheme == TODAY) exchange(s, act_words, INTER, BLOCKS, BLOCKS, INTER, epoch + 4);
    else if (clustered) gather(mine, INTER / CLUSTERS / CLUSTER, own[0]);
    sum ^= consume(s, pipeline, DOWN);
    if (s.scheme == TODAY) exchange(s, x_words + 32768, HIDDEN, BLOCKS, BLOCKS, HIDDEN, epoch + 5);
    else if (clustered) sum_partials(s, act_words, 2 * layer + 2, partials, mine, x[1]);
  }
  for (int i = threadIdx.x; clustered && i < 2 * HIDDEN; i += THREADS) {
    const float whole = CLUSTERS * (CLUSTERS + 1) / 2 * (i % HIDDEN % OWN % 7 + 1.f);
    if (x[i / HIDDEN][i % HIDDEN] != whole) atomicAdd(s.errors, 1);
  }
  if (sum == 0x9e3779b9u) *s.sink = sum;
  if (CLUSTERED) cluster_barrier();  // no block may end while others write into its shared memory
}
