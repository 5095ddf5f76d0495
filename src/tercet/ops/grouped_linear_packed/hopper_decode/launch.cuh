// Launches of kernel_few.cuh and kernel.cuh.
#pragma once
#include "kernel_few.cuh"
#include "kernel.cuh"

// With programmatic dependent launch: blocks start while the previous kernel ends, and wait for it.
template <class... Arguments>
int launch(void (*kernel)(Arguments...), int blocks, int bytes, cudaStream_t stream,
           Arguments... arguments) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute pdl;
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &pdl;
  config.numAttrs = 1;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  return status != cudaSuccess ? (cudaGetLastError(), status) : cudaSuccess;
}

template <int BITS, int TILES, class X>
int launch_tiles(const Task& task, const Cut& cut, cudaStream_t stream) {
  using S = Shape<BITS, TILES, X>;
  const int parts = (task.blocks * 16 + S::WIDTH - 1) / S::WIDTH;
  return launch<Task, int>(experts<BITS, TILES, X>, cut.most_tiles * parts, S::SHARED, stream, task,
                           parts);
}

template <int BITS, class X, int AHEAD>
int launch_few(const Task& task, const Cut& cut, cudaStream_t stream) {
  const int slice = cut.slice_blocks ? cut.slice_blocks : MOST_BLOCKS;
  const int least = cut.most_tiles * ((task.blocks + slice - 1) / slice);
  const int bytes = Few<BITS, X, AHEAD>::shared(cut.rows, task.units);
  return launch<Task, int, int, int, int>(
      experts_few<BITS, X, AHEAD>, least > cut.slots ? least : cut.slots,
      bytes > cut.shared ? bytes : cut.shared, stream, task, cut.rows, cut.slice_blocks, cut.slots, cut.ahead);
}

// iterations of six units where they pad less than those of eight
template <int BITS, class X> int launch_few(const Task& task, const Cut& cut, cudaStream_t stream) {
  if (Few<BITS, X, 6>::padded_units(task.units) < Few<BITS, X, 8>::padded_units(task.units))
    return launch_few<BITS, X, 6>(task, cut, stream);
  return launch_few<BITS, X, 8>(task, cut, stream);
}

template <int BITS, class X>
int with_tiles(const Task& task, const Cut& cut, cudaStream_t stream) {
  if (cut.rows <= 8) return launch_few<BITS, X>(task, cut, stream);
  if (cut.rows == 32) return launch_tiles<BITS, 4, X>(task, cut, stream);
  if (cut.rows == 48) return launch_tiles<BITS, 6, X>(task, cut, stream);
  return cudaErrorInvalidValue;
}

template <class X> int with_bits(const Task* task, const Cut* cut, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (cut->bits == 2) return with_tiles<2, X>(*task, *cut, on);
  if (cut->bits == 4) return with_tiles<4, X>(*task, *cut, on);
  return cudaErrorInvalidValue;
}
