// linear_packed for many tokens on Hopper: y [M, N] = x [M, K] W [N, K]^T, W of 2, 4 or 8 bits.
// x is int8, or a float of 16 bits (2 bits are ternary then).
//
// The product is computed as y^T = W x^T, so that the packed weights are the operand that wgmma
// takes from registers (prefill_words.cuh). Nothing is ever decoded into memory. x is the operand
// in shared memory, tokens are the columns of the accumulator.
//
//   warpgroup 0      two threads ask the copy engine for x (T tokens), and for W (ROWS rows) and the
//                    scales of groups, 128 columns a stage, in a ring; blocks of a cluster share the
//                    tokens and send each other their part of x
//   warpgroups 1, 2  MB x 64 rows each: decode the next step while the tensor cores run this one
//
//   y = fma(float(sum of products) * (w_scale[n] * UNIT), x_scale[m], bias[n]) + residual
//
// every operation rounded to float32 in that order, then once to the type of y; UNIT is what the
// multiplied number of code 1 divides by. Where scales are of groups of 64 or 128 columns,
// total = fma(float(sum of group), scale * UNIT, total) over the groups in order, or over those of each
// block that splits a tile's columns, whose totals are then added;
// y = fma(total, x_scale[m], bias[n]) + residual, and no tile is cut.
#pragma once
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#error "wgmma and setmaxnreg are of compute capability 9.0 alone: compile for sm_90a"
#endif

#include "mbarrier.cuh"
#include "prefill_groups.cuh"
#include "prefill_parts.cuh"
#include "prefill_plan.cuh"
#include "prefill_promoted.cuh"
#include "prefill_result.cuh"
#include "prefill_shape.cuh"
#include "prefill_split.cuh"
#include "tma.cuh"

#include <type_traits>

// until the kernel before this one has ended and what it wrote is there
__device__ inline void wait_for_kernel_ahead() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// the next one may start as soon as there is room
__device__ inline void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Two threads fill the ring, for one would take longer for a stage of few tokens than its products do:
// one with W and the scales of groups, one with x.
template <class S>
__device__ void bring_w(Ring ring, Walk walk, const CUtensorMap* w_map, const CUtensorMap* scale_map,
                        const Plan& plan, int scale_bytes, int clusters, int rank) {
  keep_places<S>(ring);
  while (walk.next(plan, clusters)) {
    walk.split<S::SPLIT>(rank);
    const Place place(plan, walk.tile);
    const int block0 = (place.n * S::CLUSTER + rank % S::CLUSTER) * (S::ROWS / 16);
    for (int k = walk.first; k < walk.last; k++) {
      const uint32_t ready = ring.full + ring.stage * 8;
      mbarrier::wait(ring.empty + ring.stage * 8, ring.parity ^ 1);
      mbarrier::expect(ready, S::W_BYTES + scale_bytes);
      tma::load(ring.w + ring.stage * S::W_BYTES, w_map, ready, 0, k * S::UNITS, block0);
      if constexpr (S::GROUP > 0)
        tma::load(ring.scale + ring.stage * S::SCALE_BYTES, scale_map, ready, 0, k * S::GROUPS,
                  block0);
      ring.advance<S>();
    }
  }
}

template <class S>
__device__ void bring_x(Ring ring, Walk walk, const CUtensorMap* x_map, const Plan& plan,
                        int clusters, int rank) {
  keep_places<S>(ring);
  while (walk.next(plan, clusters)) {
    walk.split<S::SPLIT>(rank);
    const int token0 = Place(plan, walk.tile).m * S::T;
    for (int k = walk.first; k < walk.last; k++) {
      const uint32_t ready = ring.full + ring.stage * 8;
      const uint32_t x = ring.x + ring.stage * S::X_BYTES;
      mbarrier::wait(ring.empty + ring.stage * 8, ring.parity ^ 1);
      mbarrier::expect(ready, S::X_BYTES);
#pragma unroll
      for (int part = 0; part < S::X_SIZE; part++) {  // 128 bytes of every token
        const int column = k * DEPTH + part * (DEPTH / S::X_SIZE);
        const uint32_t to = x + part * (S::T * 128);
        if constexpr (S::CLUSTER > 1)
          tma::load_to_all(to + rank * (S::T / S::CLUSTER * 128), x_map, ready, column,
                           token0 + rank * (S::T / S::CLUSTER), (1 << S::CLUSTER) - 1);
        else
          tma::load(to, x_map, ready, column, token0);
      }
      ring.advance<S>();
    }
  }
}

// One of the two groups of warps: its rows of every tile of the walk.
template <class S>
__device__ void consume(const Ring& ring, Walk walk, const Plan& plan, const Result& result,
                        const CUtensorMap* y_map, const Parts& parts, int clusters, int cluster,
                        int rank, int warp, uint8_t* turn, int* ticket) {
  const int group = warp / 4, block = warp * S::MB;
  Feed<S> feed(ring, block);
  Lead lead = {S::TEAMS != 2 ? 0 : plan.whole > clusters ? max(1, S::AHEAD / S::RUN) : 1};
  while (walk.next(plan, clusters)) {
    walk.split<S::SPLIT>(rank);
    if (group > 0) lead.follow();
    const Place place(plan, walk.tile);
    const int token0 = place.m * S::T + (S::SPLIT > 1 ? rank * S::Own::T : 0);  // of y
    const int row0 = (place.n * S::CLUSTER + rank % S::CLUSTER) * S::ROWS + block * 16;
    Factors<typename S::Own> factors;
    factors.load(result, token0, row0);
    const int stages = walk.last - walk.first;
    const auto finish = [&](const auto& sums) {
      if constexpr (S::SPLIT > 1) {
        std::remove_const_t<std::remove_reference_t<decltype(sums[0][0])>> own[S::MB][S::Own::T / 2];
        meet_sums<S>(own, sums, ring.meeting, ring.arrived, rank);
        write<typename S::Own>(own, factors, result, y_map, token0, row0, turn);
      } else {
        write<S>(sums, factors, result, y_map, token0, row0, turn);
      }
    };
    if constexpr (S::GROUP > 0) {
      float totals[S::MB][S::T / 2];
      if constexpr (S::X == E4M3)
        multiply_promoted<S>(totals, feed, lead, result, block, stages);
      else if constexpr (S::X == INT8)
        multiply_groups<S>(totals[0], feed, lead, result, block, stages);
      else
        multiply_wide_groups<S>(totals[0], feed, lead, result, block, stages);
      finish(totals);
    } else {
      Sums<S> sums;
      if constexpr (S::X == E4M3)
        multiply_promoted<S>(sums, feed, lead, result, block, stages);
      else
        multiply<S>(sums, feed, lead, stages);
      const bool cut = S::SPLIT == 1 && (walk.first > 0 || walk.last < plan.depth);
      if (!cut || take_over<S>(sums, plan, parts, walk.tile, cluster, rank, group, ticket))
        finish(sums);
    }
  }
  // a block that ends takes its shared memory along
  if (threadIdx.x % 32 == 0) tma::wait_for_stores<0>();
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    prefill(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
            const __grid_constant__ CUtensorMap scale_map,
            const __grid_constant__ CUtensorMap y_map, const Plan plan, const Result result,
            const Parts parts) {
  extern __shared__ uint8_t memory[];
  __shared__ int tickets[S::TEAMS];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  uint8_t* const turns = aligned + S::STAGES * S::STAGE_BYTES;
  Ring ring;
  ring.x = mbarrier::address_of(aligned);
  ring.w = ring.x + S::STAGES * S::X_BYTES;
  ring.scale = ring.w + S::STAGES * S::W_BYTES;
  ring.meeting = mbarrier::address_of(turns + S::WARPS * S::WARP_BYTES);
  ring.full = ring.meeting + S::MEETING_BYTES;
  ring.empty = ring.full + S::STAGES * 8;
  ring.arrived = ring.empty + S::STAGES * 8;

  const int cluster = blockIdx.x / S::BLOCKS, rank = blockIdx.x % S::BLOCKS;
  const int clusters = gridDim.x / S::BLOCKS;
  // the same in all lanes, and known to be: a branch on it does not split a warpgroup
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::STAGES; s++) {
      mbarrier::init(ring.full + s * 8, 2);
      mbarrier::init(ring.empty + s * 8, S::WARPS * S::CLUSTER);
    }
    mbarrier::init(ring.arrived, S::WARPS * max(1, S::SPLIT - 1));
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

  // all before had nothing to do with the kernel before this one
  launch_dependents();
  const Walk walk(plan, cluster);
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const int scale_bytes =
        S::GROUP ? S::ROWS * S::GROUPS * (result.w_scale_type == FLOAT32 ? 4 : 2) : 0;
    if (threadIdx.x == 0) {
      if (!plan.early) wait_for_kernel_ahead();
      bring_w<S>(ring, walk, &w_map, &scale_map, plan, scale_bytes, clusters, rank);
    } else if (threadIdx.x == 32) {
      wait_for_kernel_ahead();
      bring_x<S>(ring, walk, &x_map, plan, clusters, rank);
    }
  } else {
    wait_for_kernel_ahead();
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::REGISTERS));
    consume<S>(ring, walk, plan, result, &y_map, parts, clusters, cluster, rank, warp - 4,
               turns + (warp - 4) * S::WARP_BYTES, tickets + warp / 4 - 1);
  }
  // others may still send to this block's shared memory
  if constexpr (S::BLOCKS > 1)
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
