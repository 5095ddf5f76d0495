// Launches of kernel.cuh.
#pragma once
#include "kernel.cuh"

// Tiles go round `blocks` blocks. Returns a cudaError_t.
template <class S> int launch_wide(const Task& task, int blocks, cudaStream_t stream) {
  if (task.experts > MOST_EXPERTS || task.n % 8 || task.y_type == FLOAT32)
    return cudaErrorInvalidValue;
  const auto x_type =
      S::X_SIZE == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  CUtensorMap x_map, w_map;
  const cuuint64_t k = task.k, count = task.count, units = task.units;
  const cuuint64_t blocks_of_w = static_cast<cuuint64_t>(task.experts) * task.blocks;
  int error = tma::encode<2>(&x_map, x_type, task.x, {k, count},
                             {static_cast<cuuint64_t>(task.x_pitch)}, {DEPTH / S::X_SIZE, S::T},
                             CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  error = tma::encode<3>(&w_map, CU_TENSOR_MAP_DATA_TYPE_INT32, task.codes,
                         {128, units, blocks_of_w}, {512, units * 512},
                         {128, S::UNITS, S::ROWS / 16}, CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error) return error;
  const auto kernel = experts_wide<S>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error) return error;
  cudaLaunchAttribute pdl;
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(S::THREADS);
  config.dynamicSmemBytes = S::BYTES;
  config.stream = stream;
  config.attrs = &pdl;
  config.numAttrs = 1;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, x_map, w_map, task);
  return status != cudaSuccess ? (cudaGetLastError(), status) : cudaSuccess;
}

template <int X, int BITS>
int launch_rows(const Task& task, int rows, int blocks, cudaStream_t stream) {
#define WIDE(...) return launch_wide<Wide<X, BITS, __VA_ARGS__>>(task, blocks, stream)
  switch (rows) {
    case 32: WIDE(2, 32, 2);
    case 48: WIDE(2, 48, 2);
    case 64: WIDE(2, 64, 2);
    case 128: WIDE(2, 128, 2);
  }
#undef WIDE
  return cudaErrorInvalidValue;
}
