// The split-K reduction of a tile whose K is split among the blocks of a cluster, in shared memory.
//
// Each block writes T / SPLIT tokens of the tile, and every other block sends it its partial sums of those.
// They are added in an order that depends on the plan alone.
#pragma once
#include "kernel/device/hopper/mbarrier.cuh"
#include "packed_weight/hopper/tile_shape.cuh"

__device__ inline void send(uint32_t shared, int block, int a, int b, int c, int d) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.v4.s32 [remote], {%2, %3, %4, %5};\n}" ::"r"(shared),
      "r"(block), "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// own: the complete sums of this block's tokens. `memory` has SPLIT_K_BYTES of the block; the mbarrier
// `arrived` counts the warps of the other blocks, once.
template <class S, typename Sum>
__device__ void reduce_split_k(Sum (&own)[S::MB][S::Own::T / 2], const Sum (&sums)[S::MB][S::T / 2],
                          uint32_t memory, uint32_t arrived, int rank) {
  constexpr int OWN = S::T / S::SPLIT / 2, VECTORS = S::MB * OWN / 4;
  const int thread = threadIdx.x - WARPGROUP_THREADS;  // of all consumer warpgroups
  const auto address_of = [&](int slot, int v) {
    return memory + ((slot * VECTORS + v) * S::WARPGROUPS * WARPGROUP_THREADS + thread) * 16;
  };
#pragma unroll
  for (int to = 0; to < S::SPLIT; to++) {
    if (to == rank) {
#pragma unroll
      for (int i = 0; i < S::MB * OWN; i++)
        own[i / OWN][i % OWN] = sums[i / OWN][to * OWN + i % OWN];
      continue;
    }
    const int slot = rank < to ? rank : rank - 1;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      const Sum(&slice)[S::T / 2] = sums[v / (OWN / 4)];
      const int at = to * OWN + v % (OWN / 4) * 4;
      send(address_of(slot, v), to, bits_of(slice[at]), bits_of(slice[at + 1]), bits_of(slice[at + 2]),
           bits_of(slice[at + 3]));
    }
  }
  mbarrier::share_with_cluster();
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (lane < S::SPLIT && lane != rank) mbarrier::arrive_releasing(arrived, lane);
  mbarrier::wait<true>(arrived, 0);
#pragma unroll
  for (int slot = 0; slot < S::SPLIT - 1; slot++)
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      const uint4 more = load_shared(address_of(slot, v));
      Sum* slice = own[v / (OWN / 4)] + v % (OWN / 4) * 4;
      add_bits(slice[0], more.x);
      add_bits(slice[1], more.y);
      add_bits(slice[2], more.z);
      add_bits(slice[3], more.w);
    }
}
