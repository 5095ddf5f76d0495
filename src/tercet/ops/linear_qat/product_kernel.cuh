// out [M, N] = (a [M, K] b [N, K]^T) * column [N] * row [M] + bias [N] on Hopper, a and b int8.
//
//   warpgroup 0      one thread asks the copy engine for 128 rows of a and 256 of b, 128 columns a
//                    stage, in a ring. Of a cluster of CM x CN blocks those beside each other share
//                    rows of a, those above each other rows of b: each loads its part and sends it
//                    to the others, so that less comes out of the L2 cache.
//   warpgroups 1, 2  64 rows of the tile each, 256 columns of sums in registers
//
// Persistent: the ring is filled for the next tile while this one is written. The first group of
// consumers keeps AHEAD stages before the second, so that one feeds the tensor cores while the
// other writes.
//
// Few tiles with a long sum leave processors idle: then PARTS blocks of a cluster sum a part of one
// tile each, and each adds up and writes 256 / PARTS columns of it (product_parts.cuh).
//
//   out = fma(float(sum) * column[n], row[m], bias[n]), each rounded to float32, then once to out
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

#include "mbarrier.cuh"
#include "product_parts.cuh"
#include "product_result.cuh"
#include "tma.cuh"
#include "wgmma_shared.cuh"

constexpr int THREADS = 384, GROUP_THREADS = 128;
constexpr int STAGES = 4, AHEAD = 2;
constexpr int A_BYTES = TILE_M * DEPTH, B_BYTES = TILE_N * DEPTH, STAGE_BYTES = A_BYTES + B_BYTES;
// the ring and the warps' memory at multiples of 1 KiB, then factors and barriers
constexpr int ALIGNED = 128;  // as dynamic shared memory is declared
constexpr int SHARED_BYTES =
    1024 - ALIGNED + STAGES * STAGE_BYTES + WARPS * WARP_BYTES + 2 * FACTOR_BYTES + 2 * STAGES * 8;
static_assert(SHARED_BYTES <= 227 * 1024, "a block has so much");

struct Tiles {
  int above, across;  // of clusters
  int depth;          // stages a tile
  int band;           // tiles above each other that are walked together, for the L2's sake
};

struct Place {
  int m, n;
  __device__ Place(const Tiles& tiles, int tile) {
    const int band = tile / (tiles.band * tiles.across), within = tile % (tiles.band * tiles.across);
    const int height = min(tiles.band, tiles.above - band * tiles.band);
    m = band * tiles.band + within % height;
    n = within / height;
  }
};

struct Ring {
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
template <int PARTS>
struct Depth {
  int first, last;
  __device__ Depth(const Tiles& tiles, int rank)
      : first(PARTS > 1 ? tiles.depth * rank / PARTS : 0),
        last(PARTS > 1 ? tiles.depth * (rank + 1) / PARTS : tiles.depth) {}
};

template <int CM, int CN, int PARTS>
__device__ void produce(Ring ring, const Tiles& tiles, const CUtensorMap* a_map,
                        const CUtensorMap* b_map, int cluster, int clusters, int rank) {
  constexpr int A_ROWS = TILE_M / CN, B_ROWS = TILE_N / CM;
  const int across = PARTS > 1 ? 0 : rank % CN, above = PARTS > 1 ? 0 : rank / CN;
  const Depth<PARTS> depth(tiles, rank);
  const uint16_t beside = ((1 << CN) - 1) << above * CN;  // the blocks of this one's rows
  uint16_t over = 0;                                      // and of its columns
  for (int i = 0; i < CM; i++) over |= 1 << (i * CN + across);
  for (int tile = cluster; tile < tiles.above * tiles.across; tile += clusters) {
    const Place place(tiles, tile);
    const int m = (place.m * CM + above) * TILE_M + across * A_ROWS;
    const int n = (place.n * CN + across) * TILE_N + above * B_ROWS;
    for (int k = depth.first; k < depth.last; k++) {
      mbarrier::wait(ring.free(), ring.parity ^ 1);
      mbarrier::expect(ring.ready(), STAGE_BYTES);
      const uint32_t a = ring.a() + across * A_ROWS * DEPTH, b = ring.b() + above * B_ROWS * DEPTH;
      if constexpr (CN > 1)
        tma::load_to_all(a, a_map, ring.ready(), k * DEPTH, m, beside);
      else
        tma::load(a, a_map, ring.ready(), k * DEPTH, m);
      if constexpr (CM > 1)
        tma::load_to_all(b, b_map, ring.ready(), k * DEPTH, n, over);
      else
        tma::load(b, b_map, ring.ready(), k * DEPTH, n);
      ring.advance();
    }
  }
}

template <int CM, int CN, int PARTS>
__device__ void consume(Ring ring, const Tiles& tiles, const Result& result,
                        const CUtensorMap* out_map, int cluster, int clusters, int rank, int warp,
                        uint32_t turn, uint32_t shared) {
  const int lane = threadIdx.x % 32, group = warp / 4;
  const int across = PARTS > 1 ? 0 : rank % CN, above = PARTS > 1 ? 0 : rank / CN;
  const Depth<PARTS> depth(tiles, rank);
  const int stages = depth.last - depth.first;
  // lane i tells the i-th of the blocks that send here: those of these rows, then of these columns
  const int other = lane - CN;
  const int told = lane < CN ? above * CN + lane : (other + (other >= above)) * CN + across;
  const auto release = [&](int stage) {
    if constexpr (CM * CN > 1) {
      if (lane < CM + CN - 1) mbarrier::arrive_at(ring.empty + stage * 8, told);
    } else if (lane == 0) {
      mbarrier::arrive(ring.empty + stage * 8);
    }
  };
  const int count = tiles.above * tiles.across;
  int ahead = min(AHEAD, stages);
  for (int tile = cluster; tile < count; tile += clusters) {
    if (group == 1 && ahead) {
      asm volatile("bar.sync 1, %0;" ::"n"(2 * GROUP_THREADS) : "memory");
      ahead = 0;
    }
    const Place place(tiles, tile);
    const int m = (place.m * CM + above) * TILE_M + warp * 16;
    const int n = (place.n * CN + across) * TILE_N;
    Factors factors;
    factors.shared = shared;
    factors.load(result, m, n);
    int sums[128];
#pragma unroll
    for (int i = 0; i < 128; i++) sums[i] = 0;
    int before = -1;  // the stage whose products may still run
    for (int k = 0; k < stages; k++) {
      mbarrier::wait(ring.ready(), ring.parity);
      const uint64_t a = wgmma::descriptor(ring.a() + group * (A_BYTES / 2));
      const uint64_t b = wgmma::descriptor(ring.b());
      wgmma::fence();
#pragma unroll
      for (int step = 0; step < DEPTH / 32; step++)
        wgmma::product_shared(sums, a + step * 2, b + step * 2);
      wgmma::commit();
      wgmma::wait<1>();
      if (before >= 0) release(before);
      before = ring.stage;
      ring.advance();
      if (group == 0 && ahead && --ahead == 0)
        asm volatile("bar.arrive 1, %0;" ::"n"(2 * GROUP_THREADS) : "memory");
    }
    wgmma::wait<0>();
    wgmma::pin(sums);
    release(before);
    // the last stage came after all warps had freed one of this tile, unless the ring holds a tile
    factors.share(group, tiles.depth > STAGES);
    if constexpr (PARTS > 1) {
      add_parts<PARTS>(sums, ring.data, rank);
      write(sums, factors, result, out_map, m, n, turn, TILE_N / PARTS * rank,
            TILE_N / PARTS * (rank + 1));
    } else {
      write(sums, factors, result, out_map, m, n, turn, 0, TILE_N);
    }
  }
  // a block that ends takes its shared memory along
  if (lane == 0) tma::wait_for_stores<0>();
}

template <int CM, int CN, int PARTS>
__global__ void __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
            const __grid_constant__ CUtensorMap out_map, const Tiles tiles, const Result result) {
  constexpr int BLOCKS = CM * CN * PARTS;
  static_assert(PARTS == 1 || CM * CN == 1, "blocks that share a tile load alone");
  extern __shared__ __align__(ALIGNED) uint8_t memory[];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  uint8_t* const turns = aligned + STAGES * STAGE_BYTES;
  Ring ring;
  ring.data = mbarrier::address_of(aligned);
  const uint32_t factors = mbarrier::address_of(turns + WARPS * WARP_BYTES);
  ring.full = factors + 2 * FACTOR_BYTES;
  ring.empty = ring.full + STAGES * 8;
  const int cluster = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS;
  const int clusters = gridDim.x / BLOCKS;
  // the same in all lanes, and known to be: a branch on it does not split a warpgroup
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier::init(ring.full + s * 8, 1);
      mbarrier::init(ring.empty + s * 8, WARPS * (CM + CN - 1));
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
  // all before had nothing to do with the kernel before this one
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0)
      produce<CM, CN, PARTS>(ring, tiles, &a_map, &b_map, cluster, clusters, rank);
    if constexpr (PARTS > 1) meet_twice();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int own = warp - 4;
    consume<CM, CN, PARTS>(ring, tiles, result, &out_map, cluster, clusters, rank, own,
                           mbarrier::address_of(turns + own * WARP_BYTES),
                           factors + own / 4 * FACTOR_BYTES);
  }
  // others may still send to this block's shared memory
  if constexpr (BLOCKS > 1)
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
