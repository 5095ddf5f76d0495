// The parts of a cut tile: sums that clusters leave in memory, added up by whoever comes last:
// integers in any order, floats in that of the columns. So it is the same bits whoever that is, and
// nobody waits for anybody.
#pragma once
#include "prefill_plan.cuh"
#include "prefill_shape.cuh"

struct Parts {
  int4* sums;
  int* arrivals;  // of each cut tile, block of the cluster and group of warps; zero before
};

// Gives up these registers' sums, or takes everybody's: whether this warpgroup came last of those
// that share the tile. `slot` 0 is a cluster's first part, 1 its last.
template <class S>
__device__ bool take_over(Sums<S>& sums, const Plan& plan, const Parts& parts,
                          int tile, int cluster, int rank, int group, int* ticket) {
  constexpr int VECTORS = S::MB * S::T / 8;
  const int thread = threadIdx.x % GROUP_THREADS, cut = tile - plan.whole;
  const int first = cut * plan.depth / plan.part;
  const int last = (cut * plan.depth + plan.depth - 1) / plan.part;
  const auto parts_of = [&](int owner) {
    const int slot = owner * plan.part / plan.depth == cut ? 0 : 1;
    return parts.sums +
           (((owner * 2ll + slot) * S::CLUSTER + rank) * S::TEAMS + group) * VECTORS * GROUP_THREADS +
           thread;
  };
  int4* mine = parts_of(cluster);
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    const int mb = v / (S::T / 8), i = v % (S::T / 8) * 4;
    __stcg(mine + v * GROUP_THREADS, make_int4(bits_of(sums[mb][i]), bits_of(sums[mb][i + 1]),
                                               bits_of(sums[mb][i + 2]), bits_of(sums[mb][i + 3])));
  }
  __threadfence();
  meet(1 + group, GROUP_THREADS);
  int* arrivals = parts.arrivals + (cut * S::CLUSTER + rank) * S::TEAMS + group;
  if (thread == 0) *ticket = atomicAdd(arrivals, 1);
  meet(1 + group, GROUP_THREADS);
  if (*ticket != last - first) return false;
  __threadfence();
  constexpr bool ANY_ORDER = S::X == INT8;
  if constexpr (!ANY_ORDER) clear<S>(sums);
  for (int owner = first; owner <= last; owner++) {
    if (ANY_ORDER && owner == cluster) continue;
    const int4* part = parts_of(owner);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      const int mb = v / (S::T / 8), i = v % (S::T / 8) * 4;
      const int4 more = __ldcg(part + v * GROUP_THREADS);
      add_bits(sums[mb][i], more.x);
      add_bits(sums[mb][i + 1], more.y);
      add_bits(sums[mb][i + 2], more.z);
      add_bits(sums[mb][i + 3], more.w);
    }
  }
  return true;
}
