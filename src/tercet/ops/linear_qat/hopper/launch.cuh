// One launch of kernel.cuh.
#pragma once
#include "kernel.cuh"

struct Operands {
  const void *a, *b;
  int64_t a_pitch, b_pitch;  // bytes from row to row, multiples of 16
  int k, swizzle;
};

template <int CM, int CN, int SPLIT>
int launch(const Operands& operands, const Result& result, void* to) {
  constexpr int BLOCKS = CM * CN * SPLIT;
  const cuuint64_t m = result.m, n = result.n, k = operands.k;
  CUtensorMap a_map, b_map, out_map = {};
  int error = tma::encode<2>(&a_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, operands.a, {k, m},
                             {static_cast<cuuint64_t>(operands.a_pitch)}, {DEPTH, TILE_M / CN},
                             CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  error = tma::encode<2>(&b_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, operands.b, {k, n},
                         {static_cast<cuuint64_t>(operands.b_pitch)}, {DEPTH, TILE_N / CM},
                         CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  if (result.mapped) {
    const auto type = result.type == FLOAT32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                      : result.type == FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint32_t size = result.type == FLOAT32 ? 4 : 2;
    error = tma::encode<2>(&out_map, type, result.out, {n, m}, {n * size}, {128 / size, 16},
                           CU_TENSOR_MAP_SWIZZLE_128B);
    if (error) return error;
  }
  const auto kernel = product<CM, CN, SPLIT>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error) return error;
  Tiles tiles;
  tiles.above = (result.m + TILE_M * CM - 1) / (TILE_M * CM);
  tiles.across = (result.n + TILE_N * CN - 1) / (TILE_N * CN);
  tiles.depth = (operands.k + DEPTH - 1) / DEPTH;
  tiles.swizzle = operands.swizzle;
  if (tiles.depth < SPLIT) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(BLOCKS);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = SHARED_BYTES;
  config.stream = static_cast<cudaStream_t>(to);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = BLOCKS;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  // how many clusters fit at once: processors that are left over in their neighbourhood stay idle
  static const auto fit = [&] {
    int found = 0;
    const auto failed = cudaOccupancyMaxActiveClusters(&found, kernel, &config);
    return failed ? -static_cast<int>(failed) : found;
  }();
  if (fit <= 0) return fit ? -fit : cudaErrorInvalidConfiguration;
  const int count = tiles.above * tiles.across;
  config.gridDim = dim3(BLOCKS * (SPLIT > 1 || count < fit ? count : fit));
  return cudaLaunchKernelEx(&config, kernel, a_map, b_map, out_map, tiles, result);
}
