// The persistent tile scheduler: data-parallel tiles go round the clusters; the stages of the remaining tiles,
// laid end to end, are divided equally among the clusters (stream-K). Producers and consumers of a block
// iterate alike. plan.py chooses.
#pragma once
#include <stdint.h>

struct Plan {
  int tiles_m, tiles_n;     // a tile of a cluster: T tokens, CLUSTER * ROWS rows
  int depth;                // stages a tile
  int data_parallel_tiles;  // the first so many are computed by one cluster each
  int stream_k_stages;      // of the others' stages, that each cluster takes
  int swizzle;              // tiles of tokens that are rasterized together, so that they find W in the L2
  int prefetch_weights;     // weights may be read while the previous kernel still runs
};

struct TileScheduler {
  int tile, first, last;  // stages [first, last) of a tile
  int next_tile, at, end;
  __device__ TileScheduler(const Plan& plan, int cluster) : next_tile(cluster) {
    const int rest = (plan.tiles_m * plan.tiles_n - plan.data_parallel_tiles) * plan.depth;
    at = min(cluster * plan.stream_k_stages, rest);
    end = min(at + plan.stream_k_stages, rest);
  }
  // split-K: the stages of the tile that block `rank` of SPLIT has
  template <int SPLIT>
  __device__ void split(int rank) {
    if (SPLIT == 1) return;
    const int depth = last;
    first = depth * rank / SPLIT;
    last = depth * (rank + 1) / SPLIT;
  }
  __device__ bool next(const Plan& plan, int clusters) {
    if (next_tile < plan.data_parallel_tiles) {
      tile = next_tile;
      next_tile += clusters;
      first = 0;
      last = plan.depth;
      return true;
    }
    if (at >= end) return false;
    tile = plan.data_parallel_tiles + at / plan.depth;
    first = at % plan.depth;
    last = min(plan.depth, first + end - at);
    at += last - first;
    return true;
  }
};

struct TileCoordinates {
  int m, n;
  __device__ TileCoordinates(const Plan& plan, int tile) {
    const int swizzle_group = tile / (plan.swizzle * plan.tiles_n), within = tile % (plan.swizzle * plan.tiles_n);
    const int height = min(plan.swizzle, plan.tiles_m - swizzle_group * plan.swizzle);
    m = swizzle_group * plan.swizzle + within % height;
    n = within / height;
  }
};
