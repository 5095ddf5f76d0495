// The split-K reduction of a tile whose K the SPLIT blocks of a cluster split: block r adds up columns
// 256 / SPLIT r and on. The other blocks' partial sums of these come into its pipeline's memory, which no tile
// needs any more: [block][4 sums][thread], 16 bytes each. Integers: the order changes nothing.
#pragma once
#include "kernel/device/hopper/mbarrier.cuh"

constexpr int SUMMING_THREADS = 256;

// all threads of all blocks; what was written to another block's memory before is seen after
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// the cluster barriers of reduce_split_k, for threads that have no sums
__device__ inline void sync_cluster_twice() {
  sync_cluster();
  sync_cluster();
}

template <int SPLIT>
__device__ void reduce_split_k(int (&sums)[128], uint32_t pipeline, int rank) {
  constexpr int COUNT = 128 / SPLIT;  // sums of a thread that a block adds up
  const uint32_t mine = pipeline + (threadIdx.x - (blockDim.x - SUMMING_THREADS)) * 16;
  // every block's products have read its pipeline
  sync_cluster();
#pragma unroll
  for (int to = 0; to < SPLIT; to++) {
    if (to == rank) continue;
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(mine), "r"(to));
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
      asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                       there + (rank * COUNT + i) / 4 * SUMMING_THREADS * 16),
                   "r"(sums[to * COUNT + i]), "r"(sums[to * COUNT + i + 1]),
                   "r"(sums[to * COUNT + i + 2]), "r"(sums[to * COUNT + i + 3])
                   : "memory");
  }
  sync_cluster();
#pragma unroll
  for (int own = 0; own < SPLIT; own++) {
    if (own != rank) continue;
    for (int from = 0; from < SPLIT; from++) {
      if (from == rank) continue;
#pragma unroll
      for (int i = 0; i < COUNT; i += 4) {
        int v[4];
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(mine + (from * COUNT + i) / 4 * SUMMING_THREADS * 16)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; j++) sums[own * COUNT + i + j] += v[j];
      }
    }
  }
}
