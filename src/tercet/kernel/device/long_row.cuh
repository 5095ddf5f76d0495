// A long row on chip: a cluster of blocks of 256 threads shares it, each thread keeps 16 vectors of 16
// bytes, 12 in shared memory and 4 in registers. Vectors as numbers, maximum and sum of powers in one
// pass, and the loads that go straight to shared memory.
#pragma once
#include "row_sums.cuh"

constexpr int THREADS = 256, BLOCKS = 4;
constexpr int WARPS = THREADS / 32;
constexpr int KEPT = 4, STASHED = 12, VECTORS = KEPT + STASHED, GROUP = 3;
constexpr int STASH_BYTES = STASHED * THREADS * 16;
constexpr int MAX_CLUSTER = 8;

__device__ void stash(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
// waits until at most so many of the last groups are still on their way
__device__ void arrived(int behind) {
  if (behind == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
  if (behind == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
  if (behind == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  if (behind == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
}
__device__ void stashed() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// over the block, the same in every thread and in every run
__device__ Sum over_block(Sum sum, float k, float2* sums) {
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    const Sum other(__shfl_xor_sync(~0u, sum.top, d), __shfl_xor_sync(~0u, sum.total, d));
    // both of a pair add in the same order
    const bool lower = (threadIdx.x & d) == 0;
    Sum first = lower ? sum : other;
    first.merge(lower ? other : sum, k);
    sum = first;
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = make_float2(sum.top, sum.total);
  __syncthreads();
  sum = Sum();
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum.merge(Sum(sums[w].x, sums[w].y), k);
  return sum;
}
__device__ float over_block(float value, float* lines) {
#pragma unroll
  for (int d = 16; d; d >>= 1) value += __shfl_xor_sync(~0u, value, d);
  if (threadIdx.x % 32 == 0) lines[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) value += lines[w];
  return value;
}
