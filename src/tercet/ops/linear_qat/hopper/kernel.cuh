// out [M, N] = (a [M, K] b [N, K]^T) * column [N] * row [M] + bias [N] on Hopper, a and b int8.
//
//   warpgroup 0      producer: one thread issues TMA loads of 128 rows of a and 256 of b, 128 columns a
//                    pipeline stage. Of a cluster of CM x CN blocks those beside each other have the same
//                    rows of a, those above each other the same rows of b: each loads its part and
//                    multicasts it, so that less comes out of the L2 cache.
//   warpgroups 1, 2  consumers, 64 rows of the tile each, 256 columns of sums in registers
//
// Persistent: the producer loads the next tile while this one is written. The first consumer warpgroup keeps
// STAGGER stages ahead of the second, so that the tensor cores run products of one during the other's epilogue.
//
// Few tiles with a long K leave multiprocessors idle: then the SPLIT blocks of a cluster split the K of one
// tile, and each reduces and writes 256 / SPLIT columns of it (split_k.cuh).
//
//   out = fma(float(sum) * column[n], row[m], bias[n]), each rounded to float32, then once to out
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

#include "kernel/device/hopper/mbarrier.cuh"
#include "split_k.cuh"
#include "epilogue.cuh"
#include "kernel/device/hopper/tma.cuh"
#include "wgmma_shared.cuh"

constexpr int THREADS = 384, WARPGROUP_THREADS = 128;
constexpr int STAGES = 4, STAGGER = 2;
constexpr int A_BYTES = TILE_M * DEPTH, B_BYTES = TILE_N * DEPTH, STAGE_BYTES = A_BYTES + B_BYTES;
// the pipeline and the warps' staging memory at multiples of 1 KiB, then factors and barriers
constexpr int ALIGNED = 128;  // as dynamic shared memory is declared
constexpr int SHARED_BYTES =
    1024 - ALIGNED + STAGES * STAGE_BYTES + WARPS * WARP_BYTES + 2 * FACTOR_BYTES + 2 * STAGES * 8;
static_assert(SHARED_BYTES <= 227 * 1024, "a block has so much");

struct Tiles {
  int above, across;  // of clusters
  int depth;          // stages a tile
  int swizzle;        // tiles above each other that are rasterized together, so that they find b in the L2
};

struct TileCoordinates {
  int m, n;
  __device__ TileCoordinates(const Tiles& tiles, int tile) {
    const int swizzle_group = tile / (tiles.swizzle * tiles.across);
    const int within = tile % (tiles.swizzle * tiles.across);
    const int height = min(tiles.swizzle, tiles.above - swizzle_group * tiles.swizzle);
    m = swizzle_group * tiles.swizzle + within % height;
    n = within / height;
  }
};

struct Pipeline {
  uint32_t data, full, empty;  // shared addresses
  int stage = 0;
  uint32_t parity = 0;
  __device__ uint32_t a() const { return data + stage * STAGE_BYTES; }
  __device__ uint32_t b() const { return a() + A_BYTES; }
  __device__ uint32_t ready() const { return full + stage * 8; }
  __device__ uint32_t free() const { return empty + stage * 8; }
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// The stages of a tile that a block sums.
template <int SPLIT>
struct Depth {
  int first, last;
  __device__ Depth(const Tiles& tiles, int rank)
      : first(SPLIT > 1 ? tiles.depth * rank / SPLIT : 0),
        last(SPLIT > 1 ? tiles.depth * (rank + 1) / SPLIT : tiles.depth) {}
};

template <int CM, int CN, int SPLIT>
__device__ void produce(Pipeline pipeline, const Tiles& tiles, const CUtensorMap* a_map,
                        const CUtensorMap* b_map, int cluster, int clusters, int rank) {
  constexpr int A_ROWS = TILE_M / CN, B_ROWS = TILE_N / CM;
  const int across = SPLIT > 1 ? 0 : rank % CN, above = SPLIT > 1 ? 0 : rank / CN;
  const Depth<SPLIT> depth(tiles, rank);
  const uint16_t beside = ((1 << CN) - 1) << above * CN;  // the blocks of this one's rows
  uint16_t over = 0;                                      // and of its columns
  for (int i = 0; i < CM; i++) over |= 1 << (i * CN + across);
  for (int tile = cluster; tile < tiles.above * tiles.across; tile += clusters) {
    const TileCoordinates coordinates(tiles, tile);
    const int m = (coordinates.m * CM + above) * TILE_M + across * A_ROWS;
    const int n = (coordinates.n * CN + across) * TILE_N + above * B_ROWS;
    for (int k = depth.first; k < depth.last; k++) {
      mbarrier::wait(pipeline.free(), pipeline.parity ^ 1);
      mbarrier::expect(pipeline.ready(), STAGE_BYTES);
      const uint32_t a = pipeline.a() + across * A_ROWS * DEPTH, b = pipeline.b() + above * B_ROWS * DEPTH;
      if constexpr (CN > 1)
        tma::load_to_all(a, a_map, pipeline.ready(), k * DEPTH, m, beside);
      else
        tma::load(a, a_map, pipeline.ready(), k * DEPTH, m);
      if constexpr (CM > 1)
        tma::load_to_all(b, b_map, pipeline.ready(), k * DEPTH, n, over);
      else
        tma::load(b, b_map, pipeline.ready(), k * DEPTH, n);
      pipeline.advance();
    }
  }
}

template <int CM, int CN, int SPLIT>
__device__ void consume(Pipeline pipeline, const Tiles& tiles, const Result& result,
                        const CUtensorMap* out_map, int cluster, int clusters, int rank, int warp,
                        uint32_t staging, uint32_t shared) {
  const int lane = threadIdx.x % 32, warpgroup = warp / 4;
  const int across = SPLIT > 1 ? 0 : rank % CN, above = SPLIT > 1 ? 0 : rank / CN;
  const Depth<SPLIT> depth(tiles, rank);
  const int stages = depth.last - depth.first;
  // lane i arrives at the i-th of the blocks that multicast to this one: of these rows, then of these columns
  const int other = lane - CN;
  const int recipient = lane < CN ? above * CN + lane : (other + (other >= above)) * CN + across;
  const auto release = [&](int stage) {
    if constexpr (CM * CN > 1) {
      if (lane < CM + CN - 1) mbarrier::arrive_at(pipeline.empty + stage * 8, recipient);
    } else if (lane == 0) {
      mbarrier::arrive(pipeline.empty + stage * 8);
    }
  };
  const int count = tiles.above * tiles.across;
  int stagger = min(STAGGER, stages);
  for (int tile = cluster; tile < count; tile += clusters) {
    if (warpgroup == 1 && stagger) {
      asm volatile("bar.sync 1, %0;" ::"n"(2 * WARPGROUP_THREADS) : "memory");
      stagger = 0;
    }
    const TileCoordinates coordinates(tiles, tile);
    const int m = (coordinates.m * CM + above) * TILE_M + warp * 16;
    const int n = (coordinates.n * CN + across) * TILE_N;
    Factors factors;
    factors.shared = shared;
    factors.load(result, m, n);
    int sums[128];
#pragma unroll
    for (int i = 0; i < 128; i++) sums[i] = 0;
    int before = -1;  // the stage whose products may still run
    for (int k = 0; k < stages; k++) {
      mbarrier::wait(pipeline.ready(), pipeline.parity);
      const uint64_t a = wgmma::descriptor(pipeline.a() + warpgroup * (A_BYTES / 2));
      const uint64_t b = wgmma::descriptor(pipeline.b());
      wgmma::fence();
#pragma unroll
      for (int step = 0; step < DEPTH / 32; step++)
        wgmma::product_shared(sums, a + step * 2, b + step * 2);
      wgmma::commit();
      wgmma::wait<1>();
      if (before >= 0) release(before);
      before = pipeline.stage;
      pipeline.advance();
      if (warpgroup == 0 && stagger && --stagger == 0)
        asm volatile("bar.arrive 1, %0;" ::"n"(2 * WARPGROUP_THREADS) : "memory");
    }
    wgmma::wait<0>();
    wgmma::pin(sums);
    release(before);
    // the last stage came after all warps had released one of this tile, unless the pipeline holds a whole tile
    factors.share(warpgroup, tiles.depth > STAGES);
    if constexpr (SPLIT > 1) {
      reduce_split_k<SPLIT>(sums, pipeline.data, rank);
      write(sums, factors, result, out_map, m, n, staging, TILE_N / SPLIT * rank,
            TILE_N / SPLIT * (rank + 1));
    } else {
      write(sums, factors, result, out_map, m, n, staging, 0, TILE_N);
    }
  }
  // shared memory must outlive the stores that read it
  if (lane == 0) tma::wait_for_stores<0>();
}

template <int CM, int CN, int SPLIT>
__global__ void __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
            const __grid_constant__ CUtensorMap out_map, const Tiles tiles, const Result result) {
  constexpr int BLOCKS = CM * CN * SPLIT;
  static_assert(SPLIT == 1 || CM * CN == 1, "blocks that share a tile load alone");
  extern __shared__ __align__(ALIGNED) uint8_t memory[];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  uint8_t* const staging = aligned + STAGES * STAGE_BYTES;
  Pipeline pipeline;
  pipeline.data = mbarrier::address_of(aligned);
  const uint32_t factors = mbarrier::address_of(staging + WARPS * WARP_BYTES);
  pipeline.full = factors + 2 * FACTOR_BYTES;
  pipeline.empty = pipeline.full + STAGES * 8;
  const int cluster = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS;
  const int clusters = gridDim.x / BLOCKS;
  // uniform, and known to be: a branch on it does not diverge
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier::init(pipeline.full + s * 8, 1);
      mbarrier::init(pipeline.empty + s * 8, WARPS * (CM + CN - 1));
    }
    mbarrier::publish();
    tma::prefetch(&a_map);
    tma::prefetch(&b_map);
    if (result.mapped) tma::prefetch(&out_map);
  }
  if constexpr (BLOCKS > 1)
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  else
    __syncthreads();
  // nothing above reads what the previous kernel wrote
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0)
      produce<CM, CN, SPLIT>(pipeline, tiles, &a_map, &b_map, cluster, clusters, rank);
    if constexpr (SPLIT > 1) sync_cluster_twice();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int own = warp - 4;
    consume<CM, CN, SPLIT>(pipeline, tiles, result, &out_map, cluster, clusters, rank, own,
                           mbarrier::address_of(staging + own * WARP_BYTES),
                           factors + own / 4 * FACTOR_BYTES);
  }
  // other blocks of the cluster may still write to this block's shared memory
  if constexpr (BLOCKS > 1)
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
