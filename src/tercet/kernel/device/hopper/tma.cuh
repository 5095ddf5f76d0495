// TMA: boxes of a tensor to shared memory, completing on an mbarrier.
// What lies outside the tensor arrives as zeros and is counted like the rest.
#pragma once
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace tma {

__device__ inline void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ inline void load(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int c0,
                            int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}

__device__ inline void load(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int c0,
                            int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

// multicast: to the same address in, and the same barrier of, every block of the cluster in `blocks` (bits)
__device__ inline void load_to_all(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                   int c0, int c1, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "h"(blocks)
      : "memory");
}

// from shared memory to a box of the tensor; what lies outside is left out. Writes of other threads
// to that memory come before, by share() in each and a barrier.
__device__ inline void store(const CUtensorMap* map, uint32_t shared, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(shared), "r"(c0), "r"(c1)
      : "memory");
}

__device__ inline void share() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// until at most `BEHIND` of this thread's last stores still read their shared memory
template <int BEHIND>
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BEHIND) : "memory");
}

// The driver's encoder, without linking the driver library. Null where the driver lacks it.
inline PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const auto error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &result);
    const bool usable = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(usable ? function : nullptr);
  }();
  return found;
}

// A dense tensor of RANK axes, the fastest first; strides in bytes of the axes after the first.
template <int RANK>
int encode(CUtensorMap* map, CUtensorMapDataType type, const void* data,
           const cuuint64_t (&shape)[RANK], const cuuint64_t (&strides)[RANK - 1],
           const cuuint32_t (&box)[RANK], CUtensorMapSwizzle swizzle) {
  const auto encode_tiled = encoder();
  if (!encode_tiled) return cudaErrorNotSupported;
  cuuint32_t steps[RANK];
  for (auto& step : steps) step = 1;
  const CUresult result = encode_tiled(
      map, type, RANK, const_cast<void*>(data), shape, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace tma
