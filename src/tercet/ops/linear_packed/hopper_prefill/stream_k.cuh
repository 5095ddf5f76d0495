// The stream-K reduction: clusters that share a tile leave their partial sums in the workspace, and the last
// one to arrive adds them: integers in any order, floats in that of the columns. So the result has the same
// bits whoever comes last, and no cluster waits for another.
#pragma once
#include "tile_scheduler.cuh"
#include "packed_weight/hopper/tile_shape.cuh"

struct Workspace {
  int4* partial_sums;
  int* arrivals;  // of each stream-K tile, block of the cluster and warpgroup; zero before
};

// Stores this warpgroup's partial sums; whether it came last of those that share the tile, and has then added
// all partial sums of its rows. Slot 0 is of a cluster's first stream-K tile, slot 1 of its last.
template <class S>
__device__ bool reduce_stream_k(Sums<S>& sums, const Plan& plan, const Workspace& workspace,
                          int tile, int cluster, int rank, int warpgroup, int* ticket) {
  constexpr int VECTORS = S::MB * S::T / 8;
  const int thread = threadIdx.x % WARPGROUP_THREADS, shared_tile = tile - plan.data_parallel_tiles;
  const int first = shared_tile * plan.depth / plan.stream_k_stages;
  const int last = (shared_tile * plan.depth + plan.depth - 1) / plan.stream_k_stages;
  const auto partial_sums_of = [&](int owner) {
    const int slot = owner * plan.stream_k_stages / plan.depth == shared_tile ? 0 : 1;
    return workspace.partial_sums +
           (((owner * 2ll + slot) * S::CLUSTER + rank) * S::WARPGROUPS + warpgroup) * VECTORS *
               WARPGROUP_THREADS +
           thread;
  };
  int4* mine = partial_sums_of(cluster);
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    const int mb = v / (S::T / 8), i = v % (S::T / 8) * 4;
    __stcg(mine + v * WARPGROUP_THREADS, make_int4(bits_of(sums[mb][i]), bits_of(sums[mb][i + 1]),
                                               bits_of(sums[mb][i + 2]), bits_of(sums[mb][i + 3])));
  }
  __threadfence();
  sync_named_barrier(1 + warpgroup, WARPGROUP_THREADS);
  int* arrivals = workspace.arrivals + (shared_tile * S::CLUSTER + rank) * S::WARPGROUPS + warpgroup;
  if (thread == 0) *ticket = atomicAdd(arrivals, 1);
  sync_named_barrier(1 + warpgroup, WARPGROUP_THREADS);
  if (*ticket != last - first) return false;
  __threadfence();
  constexpr bool ANY_ORDER = S::X == INT8;
  if constexpr (!ANY_ORDER) clear<S>(sums);
  for (int owner = first; owner <= last; owner++) {
    if (ANY_ORDER && owner == cluster) continue;
    const int4* slice = partial_sums_of(owner);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      const int mb = v / (S::T / 8), i = v % (S::T / 8) * 4;
      const int4 more = __ldcg(slice + v * WARPGROUP_THREADS);
      add_bits(sums[mb][i], more.x);
      add_bits(sums[mb][i + 1], more.y);
      add_bits(sums[mb][i + 2], more.z);
      add_bits(sums[mb][i + 3], more.w);
    }
  }
  return true;
}
