// Row stream: rows flow through shared memory into registers, one copy per warp and row.
//
// A block, or a cluster of `cluster_size` blocks, iterates over rows. Warp w of them owns the units
// [w * share, (w + 1) * share) of every row, a unit being 16 bytes and a share whole lines of 128.
// TMA (cp.async.bulk) brings a warp's share of a row into the warp's own slot of shared
// memory; the warp takes it into registers and at once asks for the share of a later row. So the
// next rows travel while this one is computed and written, no register is spent on what is under
// way, and warps need no barrier of the block for the slots.
//
// Lane l holds units l, l + 32, ... of its warp's share, VECTORS of them. Units beyond the share's end
// are words of `beyond`, in every slot, from the start: a copy never writes there.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernel/device/hopper/mbarrier.cuh"

namespace row_stream {

constexpr int UNIT_BYTES = 16, LINE_UNITS = 8, MAX_STAGES = 4, MAX_WARPS = 32;
// a wait lasts up to some microseconds: a copy that takes millions of them will never arrive
constexpr int PATIENCE = 1 << 24;

// what one warp reads of the rows of its block
template <int VECTORS> struct WarpShare {
  static constexpr int SLOT_UNITS = 32 * VECTORS;
  const char* x;
  int64_t stride_bytes;
  uint32_t slots, barriers;  // addresses in shared memory
  int rows, next, step, first, count, stages, slot;  // next: the row to be asked for
  uint32_t phase, held_back;  // held_back: 0, known only when what was taken has arrived

  // rows blockIdx.x / cluster_size, + gridDim.x / cluster_size, ... of `rows` at x; `memory` holds slot_bytes(),
  // `all_barriers` are MAX_STAGES of every warp
  __device__ WarpShare(const void* x, int64_t stride_bytes, int rows, int units, int stages,
                       void* memory, uint64_t* all_barriers, int cluster_size = 1, uint32_t beyond = 0)
      : x(static_cast<const char*>(x)), stride_bytes(stride_bytes), rows(rows),
        next(blockIdx.x / cluster_size), step(gridDim.x / cluster_size), stages(stages), slot(0), phase(0),
        held_back(0) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int line = LINE_UNITS * warps * cluster_size, share = (units + line - 1) / line * LINE_UNITS;
    first = (blockIdx.x % cluster_size * warps + warp) * share;
    count = min(max(units - first, 0), share);
    uint4* own = static_cast<uint4*>(memory) + warp * stages * SLOT_UNITS;
    slots = mbarrier::address_of(own);
    barriers = mbarrier::address_of(all_barriers + warp * MAX_STAGES);
    for (int s = 0; s < stages; s++)
      for (int u = count + lane; u < SLOT_UNITS; u += 32)
        own[s * SLOT_UNITS + u] = make_uint4(beyond, beyond, beyond, beyond);
    if (lane == 0) {
      for (int s = 0; s < stages; s++) mbarrier::init(barriers + 8 * s, 1);
      mbarrier::publish();
      for (int s = 0; s < stages; s++) ask(s);
    }
    __syncwarp();
  }

  // the next row that nobody asked for yet, into a slot; by one lane
  __device__ __forceinline__ void ask(int into) {
    if (next >= rows) return;
    const char* from = x + stride_bytes * next + static_cast<int64_t>(first) * UNIT_BYTES;
    const uint32_t barrier = barriers + 8 * into, bytes = count * UNIT_BYTES;
    mbarrier::expect(barrier, bytes);
    if (bytes)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
          ::"r"(slots + into * SLOT_UNITS * UNIT_BYTES), "l"(from), "r"(bytes), "r"(barrier)
          : "memory");
    next += step;
  }

  // waits for the next row and takes it
  __device__ __forceinline__ void take(uint4 (&held)[VECTORS]) {
    for (int tries = 0; !mbarrier::passed(barriers + 8 * slot, phase);)
      if (++tries == PATIENCE) __trap();
    const uint32_t here = slots + (slot * SLOT_UNITS + threadIdx.x % 32) * UNIT_BYTES;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(held[i].x), "=r"(held[i].y), "=r"(held[i].z), "=r"(held[i].w)
                   : "r"(here + 32 * UNIT_BYTES * i)
                   : "memory");
    uint32_t words = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) words |= held[i].x;
    held_back = words & static_cast<uint32_t>(stages) >> 8;
  }

  // What was taken is in the registers of every lane: its slot is free for a later row. The loads of
  // take() have been issued, no more: behind a long queue of others they read the slot a microsecond
  // later, and TMA, which does not wait in that queue, may have refilled it by then. So a
  // lane arrives here with a number that it has only when its loads are done.
  __device__ __forceinline__ void taken() {
    __syncwarp(~held_back);
    if (threadIdx.x % 32 == 0) ask(slot);
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }

  // whether the lane's vector i lies inside the row, and which unit of the row it is
  __device__ __forceinline__ bool inside(int i) const {
    return static_cast<int>(threadIdx.x % 32) + 32 * i < count;
  }
  __device__ __forceinline__ int unit(int i) const { return first + threadIdx.x % 32 + 32 * i; }
};

inline int slot_bytes(int vectors, int warps, int stages) {
  return 32 * vectors * UNIT_BYTES * warps * stages;
}

// how many blocks iterate over the rows: as many as fit, but all with as many rows, or one fewer
template <typename Kernel>
cudaError_t grid_of(Kernel kernel, int rows, int threads, int bytes, int* blocks) {
  int device, processors, each;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, bytes);
  if (error != cudaSuccess) return error;
  if (each == 0) return cudaErrorLaunchOutOfResources;
  const int rounds = (rows + processors * each - 1) / (processors * each);
  *blocks = (rows + rounds - 1) / rounds;
  return cudaSuccess;
}

}  // namespace row_stream
