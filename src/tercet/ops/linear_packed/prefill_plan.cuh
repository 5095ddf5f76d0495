// How prefill.cu deals out a product: whole tiles go round the clusters, then the stages of the
// remaining tiles are cut into equal parts, one a cluster (stream-K). Producers and consumers walk
// alike. cuda_wgmma_plan.py chooses.
#pragma once
#include <stdint.h>

struct Plan {
  int tiles_m, tiles_n;  // a tile of a cluster: T tokens, CLUSTER * ROWS rows
  int depth;             // stages a tile
  int whole;             // so many tiles are not cut
  int part;              // stages a cluster of the others
  int band;              // tiles of tokens that are walked together, for the L2's sake
  int early;             // weights may be read while the kernel ahead still runs
};

struct Walk {
  int tile, first, last;  // stages [first, last) of a tile
  int next_tile, at, end;
  __device__ Walk(const Plan& plan, int cluster) : next_tile(cluster) {
    const int rest = (plan.tiles_m * plan.tiles_n - plan.whole) * plan.depth;
    at = min(cluster * plan.part, rest);
    end = min(at + plan.part, rest);
  }
  // the part of a whole tile that block `rank` of SPLIT has
  template <int SPLIT>
  __device__ void split(int rank) {
    if (SPLIT == 1) return;
    const int depth = last;
    first = depth * rank / SPLIT;
    last = depth * (rank + 1) / SPLIT;
  }
  __device__ bool next(const Plan& plan, int clusters) {
    if (next_tile < plan.whole) {
      tile = next_tile;
      next_tile += clusters;
      first = 0;
      last = plan.depth;
      return true;
    }
    if (at >= end) return false;
    tile = plan.whole + at / plan.depth;
    first = at % plan.depth;
    last = min(plan.depth, first + end - at);
    at += last - first;
    return true;
  }
};

struct Place {
  int m, n;
  __device__ Place(const Plan& plan, int tile) {
    const int band = tile / (plan.band * plan.tiles_n), within = tile % (plan.band * plan.tiles_n);
    const int height = min(plan.band, plan.tiles_m - band * plan.band);
    m = band * plan.band + within % height;
    n = within / height;
  }
};
