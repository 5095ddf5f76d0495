// linear_packed for many tokens on Hopper: y [M, N] = x [M, K] W [N, K]^T, W of 2, 4 or 8 bits.
// x is int8, or a float of 16 bits (2 bits are ternary then).
//
// The product is computed as y^T = W x^T, so that the packed weights are the operand that wgmma takes from
// registers (packed_weight/hopper/dequantize.cuh): nothing is ever decoded into memory. x is the operand in
// shared memory, tokens are the columns of the accumulator.
//
//   warpgroup 0      producer: two threads issue TMA loads of x (T tokens), and of W (ROWS rows) and the
//                    scales of groups, 128 columns a pipeline stage; blocks of a cluster have the same
//                    tokens, and each multicasts its part of them
//   warpgroups 1, 2  consumers, MB x 64 rows each: decode the next step while the tensor cores run this one
//
//   y = fma(float(sum of products) * (w_scale[n] * UNIT), x_scale[m], bias[n]) + residual
//
// every operation rounded to float32 in that order, then once to the type of y; a code is multiplied as
// code / UNIT. Where scales are of groups of 64 or 128 columns,
// total = fma(float(sum of group), scale * UNIT, total) over the groups in order; with split-K over the groups
// of each block, whose totals are then added; y = fma(total, x_scale[m], bias[n]) + residual, and there are
// no stream-K tiles. With SCALED_FLOAT16 it is codes that are multiplied by scales, and sums are of all columns.
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

#include "kernel/device/hopper/mbarrier.cuh"
#include "mainloop_groups.cuh"
#include "stream_k.cuh"
#include "tile_scheduler.cuh"
#include "mainloop_fp8.cuh"
#include "packed_weight/hopper/epilogue.cuh"
#include "packed_weight/hopper/tile_shape.cuh"
#include "split_k.cuh"
#include "kernel/device/hopper/tma.cuh"

#include <type_traits>

// programmatic dependent launch: until the previous kernel has ended and what it wrote is visible
__device__ inline void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// the next kernel may start as soon as there is room
__device__ inline void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Two producer threads, for one would take longer for a stage of few tokens than its products do: one loads W
// and the scales of groups, one loads x.
template <class S>
__device__ void produce_w(Pipeline pipeline, TileScheduler scheduler, const CUtensorMap* w_map,
                          const CUtensorMap* scale_map, const Plan& plan, int scale_bytes,
                          int clusters, int rank) {
  keep_addresses<S>(pipeline);
  while (scheduler.next(plan, clusters)) {
    scheduler.split<S::SPLIT>(rank);
    const TileCoordinates coordinates(plan, scheduler.tile);
    const int block0 = (coordinates.n * S::CLUSTER + rank % S::CLUSTER) * (S::ROWS / 16);
    for (int k = scheduler.first; k < scheduler.last; k++) {
      const uint32_t ready = pipeline.full + pipeline.stage * 8;
      mbarrier::wait(pipeline.empty + pipeline.stage * 8, pipeline.parity ^ 1);
      mbarrier::expect(ready, S::W_BYTES + scale_bytes);
      tma::load(pipeline.w + pipeline.stage * S::W_BYTES, w_map, ready, 0, k * S::UNITS, block0);
      if constexpr (S::GROUP > 0)
        tma::load(pipeline.scale + pipeline.stage * S::SCALE_BYTES, scale_map, ready, 0, k * S::GROUPS,
                  block0);
      pipeline.advance<S>();
    }
  }
}

template <class S>
__device__ void produce_x(Pipeline pipeline, TileScheduler scheduler, const CUtensorMap* x_map, const Plan& plan,
                        int clusters, int rank) {
  keep_addresses<S>(pipeline);
  while (scheduler.next(plan, clusters)) {
    scheduler.split<S::SPLIT>(rank);
    const int token0 = TileCoordinates(plan, scheduler.tile).m * S::T;
    for (int k = scheduler.first; k < scheduler.last; k++) {
      const uint32_t ready = pipeline.full + pipeline.stage * 8;
      const uint32_t x = pipeline.x + pipeline.stage * S::X_BYTES;
      mbarrier::wait(pipeline.empty + pipeline.stage * 8, pipeline.parity ^ 1);
      mbarrier::expect(ready, S::X_BYTES);
#pragma unroll
      for (int slice = 0; slice < S::X_SIZE; slice++) {  // 128 bytes of every token
        const int column = k * DEPTH + slice * (DEPTH / S::X_SIZE);
        const uint32_t to = x + slice * (S::T * 128);
        if constexpr (S::CLUSTER > 1)
          tma::load_to_all(to + rank * (S::T / S::CLUSTER * 128), x_map, ready, column,
                           token0 + rank * (S::T / S::CLUSTER), (1 << S::CLUSTER) - 1);
        else
          tma::load(to, x_map, ready, column, token0);
      }
      pipeline.advance<S>();
    }
  }
}

// A consumer warpgroup: its rows of every tile that the scheduler gives the cluster.
template <class S>
__device__ void consume(const Pipeline& pipeline, TileScheduler scheduler, const Plan& plan, const Result& result,
                        const CUtensorMap* y_map, const Workspace& workspace, int clusters, int cluster,
                        int rank, int warp, uint8_t* staging, int* ticket) {
  const int warpgroup = warp / 4, block = warp * S::MB;
  Consumer<S> consumer(pipeline, block);
  Stagger stagger = {S::WARPGROUPS != 2                      ? 0
                     : plan.data_parallel_tiles > clusters ? max(1, S::STAGGER / S::RUN)
                                                           : 1};
  while (scheduler.next(plan, clusters)) {
    scheduler.split<S::SPLIT>(rank);
    if (warpgroup > 0) stagger.follow();
    const TileCoordinates coordinates(plan, scheduler.tile);
    const int token0 = coordinates.m * S::T + (S::SPLIT > 1 ? rank * S::Own::T : 0);  // of y
    const int row0 = (coordinates.n * S::CLUSTER + rank % S::CLUSTER) * S::ROWS + block * 16;
    Factors<typename S::Own> factors;
    factors.load(result, token0, row0);
    const int stages = scheduler.last - scheduler.first;
    const auto finish = [&](const auto& sums) {
      if constexpr (S::SPLIT > 1) {
        std::remove_const_t<std::remove_reference_t<decltype(sums[0][0])>> own[S::MB][S::Own::T / 2];
        reduce_split_k<S>(own, sums, pipeline.split_k_sums, pipeline.arrived, rank);
        write<typename S::Own>(own, factors, result, y_map, token0, row0, staging);
      } else {
        write<S>(sums, factors, result, y_map, token0, row0, staging);
      }
    };
    if constexpr (S::SCALED_SUMS) {
      float totals[S::MB][S::T / 2];
      if constexpr (S::X == E4M3)
        multiply_promoted<S>(totals, consumer, stagger, result, block, stages);
      else if constexpr (S::X == INT8)
        multiply_groups<S>(totals[0], consumer, stagger, result, block, stages);
      else
        multiply_wide_groups<S>(totals[0], consumer, stagger, result, block, stages);
      finish(totals);
    } else {
      Sums<S> sums;
      if constexpr (S::X == E4M3)
        multiply_promoted<S>(sums, consumer, stagger, result, block, stages);
      else
        multiply<S>(sums, consumer, stagger, stages);
      const bool stream_k = S::SPLIT == 1 && (scheduler.first > 0 || scheduler.last < plan.depth);
      if (!stream_k ||
          reduce_stream_k<S>(sums, plan, workspace, scheduler.tile, cluster, rank, warpgroup, ticket))
        finish(sums);
    }
  }
  // shared memory must outlive the stores that read it
  if (threadIdx.x % 32 == 0) tma::wait_for_stores<0>();
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    prefill(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
            const __grid_constant__ CUtensorMap scale_map,
            const __grid_constant__ CUtensorMap y_map, const Plan plan, const Result result,
            const Workspace workspace) {
  extern __shared__ uint8_t memory[];
  __shared__ int tickets[S::WARPGROUPS];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  uint8_t* const staging = aligned + S::STAGES * S::STAGE_BYTES;
  Pipeline pipeline;
  pipeline.x = mbarrier::address_of(aligned);
  pipeline.w = pipeline.x + S::STAGES * S::X_BYTES;
  pipeline.scale = pipeline.w + S::STAGES * S::W_BYTES;
  pipeline.split_k_sums = mbarrier::address_of(staging + S::WARPS * S::WARP_BYTES);
  pipeline.full = pipeline.split_k_sums + S::SPLIT_K_BYTES;
  pipeline.empty = pipeline.full + S::STAGES * 8;
  pipeline.arrived = pipeline.empty + S::STAGES * 8;

  const int cluster = blockIdx.x / S::BLOCKS, rank = blockIdx.x % S::BLOCKS;
  const int clusters = gridDim.x / S::BLOCKS;
  // uniform, and known to be: a branch on it does not diverge
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::STAGES; s++) {
      mbarrier::init(pipeline.full + s * 8, 2);
      mbarrier::init(pipeline.empty + s * 8, S::WARPS * S::CLUSTER);
    }
    mbarrier::init(pipeline.arrived, S::WARPS * max(1, S::SPLIT - 1));
    mbarrier::publish();
    tma::prefetch(&x_map);
    tma::prefetch(&w_map);
    if (S::GROUP) tma::prefetch(&scale_map);
    if (result.mapped) tma::prefetch(&y_map);
  }
  if constexpr (S::BLOCKS > 1)
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  else
    __syncthreads();

  // nothing above reads what the previous kernel wrote
  launch_dependents();
  const TileScheduler scheduler(plan, cluster);
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const int scale_bytes =
        S::GROUP ? S::ROWS * S::GROUPS * (result.w_scale_type == FLOAT32 ? 4 : 2) : 0;
    if (threadIdx.x == 0) {
      if (!plan.prefetch_weights) wait_for_previous_kernel();
      produce_w<S>(pipeline, scheduler, &w_map, &scale_map, plan, scale_bytes, clusters, rank);
    } else if (threadIdx.x == 32) {
      wait_for_previous_kernel();
      produce_x<S>(pipeline, scheduler, &x_map, plan, clusters, rank);
    }
  } else {
    wait_for_previous_kernel();
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
    consume<S>(pipeline, scheduler, plan, result, &y_map, workspace, clusters, cluster, rank, warp - 4,
               staging + (warp - 4) * S::WARP_BYTES, tickets + warp / 4 - 1);
  }
  // other blocks of the cluster may still write to this block's shared memory
  if constexpr (S::BLOCKS > 1)
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
