// One launch of kernel.cuh, and the tiles that exist.
#pragma once
#include "kernel.cuh"

struct Call {
  const void *x, *codes;
  int64_t x_pitch;  // bytes from token to token, a multiple of 16
  int columns, clusters;
};

template <class S>
int launch(const Call& call, Plan plan, const Result& result, const Workspace& workspace, void* to) {
  const auto stream = static_cast<cudaStream_t>(to);
  const cuuint64_t tokens = result.tokens, blocks = (result.rows + 15) / 16;
  plan.depth = (call.columns + DEPTH - 1) / DEPTH;
  plan.tiles_m = (result.tokens + S::T - 1) / S::T;
  plan.tiles_n = (result.rows + S::ROWS * S::CLUSTER - 1) / (S::ROWS * S::CLUSTER);
  const int stream_k_tiles = plan.tiles_m * plan.tiles_n - plan.data_parallel_tiles;
  if (stream_k_tiles && (S::SCALED_SUMS || S::SPLIT > 1)) return cudaErrorInvalidValue;
  if (S::SPLIT > 1 && (plan.depth < S::SPLIT || call.clusters < plan.data_parallel_tiles))
    return cudaErrorInvalidValue;
  const cuuint64_t units = plan.depth * S::UNITS;
  CUtensorMap x_map, w_map, scale_map = {}, y_map = {};
  const auto x_type =
      S::X_SIZE == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  int error = tma::encode<2>(&x_map, x_type, call.x,
                             {static_cast<cuuint64_t>(call.columns), tokens},
                             {static_cast<cuuint64_t>(call.x_pitch)},
                             {DEPTH / S::X_SIZE, S::T / S::CLUSTER}, CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  error = tma::encode<3>(&w_map, CU_TENSOR_MAP_DATA_TYPE_INT32, call.codes, {128, units, blocks},
                         {512, units * 512}, {128, S::UNITS, S::ROWS / 16},
                         CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error) return error;
  if (S::SCALED && result.w_scale_type != FLOAT16) return cudaErrorInvalidValue;
  if (S::GROUP) {
    const bool wide = result.w_scale_type == FLOAT32;
    const auto type = wide ? CU_TENSOR_MAP_DATA_TYPE_UINT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
    const cuuint64_t groups = result.groups, size = wide ? 4 : 2;
    error = tma::encode<3>(&scale_map, type, result.w_scale, {16, groups, blocks},
                           {16 * size, groups * 16 * size}, {16, S::GROUPS, S::ROWS / 16},
                           CU_TENSOR_MAP_SWIZZLE_NONE);
    if (error) return error;
  }
  if (result.mapped) {
    const auto type = result.type == FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint64_t rows = result.rows;
    error = tma::encode<2>(&y_map, type, result.y, {rows, tokens}, {rows * 2},
                           {S::MB * 16, S::Own::EPILOGUE_TOKENS},
                           S::MB == 2 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B);
    if (error) return error;
  }
  if (stream_k_tiles) {
    const size_t bytes = sizeof(int) * stream_k_tiles * S::CLUSTER * S::WARPGROUPS;
    error = cudaMemsetAsync(workspace.arrivals, 0, bytes, stream);
    if (error) return error;
  }
  const auto kernel = prefill<S>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(call.clusters * S::BLOCKS);
  config.blockDim = dim3(S::THREADS);
  config.dynamicSmemBytes = S::BYTES;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = S::BLOCKS;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = stream_k_tiles ? 1 : 2;  // after a memset programmatic dependent launch gains nothing
  return cudaLaunchKernelEx(&config, kernel, x_map, w_map, scale_map, y_map, plan, result, workspace);
}

// A tile as the plan names it: hopper_prefill/tiles.py and tuned/hopper_prefill.
struct TileShape {
  int rows, tokens, cluster_size, split, warpgroups;
};

template <class S>
bool has_shape(const TileShape& tile) {
  return tile.rows == S::ROWS && tile.tokens == S::T && tile.cluster_size == S::CLUSTER &&
         tile.split == S::SPLIT && tile.warpgroups == S::WARPGROUPS;
}

// The tiles that exist: MB, T, CLUSTER, SPLIT, WARPGROUPS. Where sums of groups are scaled, every register that
// they take is taken twice: only those of 64 rows a warpgroup exist.
template <int X, int CODE, int GROUP>
int launch_tile(const TileShape& tile, const Call& call, const Plan& plan, const Result& result,
                const Workspace& workspace, void* stream) {
  constexpr bool ONCE = GROUP == 0 || X == SCALED_FLOAT16;
#define TILE(...)                                          \
  if (has_shape<Shape<X, CODE, GROUP, __VA_ARGS__>>(tile)) \
  return launch<Shape<X, CODE, GROUP, __VA_ARGS__>>(call, plan, result, workspace, stream)
  if constexpr (X == E4M3) {
    TILE(1, 128, 1);
    TILE(1, 176, 1);
    TILE(1, 64, 2);
    if constexpr (GROUP == 0) {
      TILE(2, 64, 1);
      TILE(2, 32, 1);
      TILE(1, 64, 1, 2);
      TILE(1, 128, 1, 2);
      TILE(1, 32, 1, 2);
    }
  } else {
    TILE(1, 128, 1);
    TILE(1, 64, 2);
  }
  if constexpr (X == INT8 || (ONCE && X != E4M3)) {
    TILE(1, 64, 1, 2);
    TILE(1, 64, 1, 4);
    TILE(1, 128, 1, 2);
    TILE(1, 128, 1, 4);
  }
  if constexpr (ONCE && X != E4M3) {
    TILE(2, 128, 1);
    TILE(2, 128, 2);
    TILE(2, 64, 1);
    TILE(2, 32, 1);
    TILE(2, 64, 1, 2);
    TILE(2, 64, 1, 4);
    TILE(1, 32, 1, 2);
    TILE(2, 32, 1, 2);
  }
  if constexpr (GROUP == 0 && X == INT8) {
    TILE(1, 256, 1);
    TILE(1, 256, 2);
    TILE(2, 176, 1);
    TILE(1, 128, 1, 1, 3);
  }
  if constexpr (GROUP == 0 && X != INT8 && X != E4M3) {
    TILE(1, 128, 1, 1, 4);
  }
  if constexpr (X == SCALED_FLOAT16) {
    TILE(1, 256, 1);
    TILE(1, 256, 2);
    TILE(1, 176, 1, 1, 3);
  }
#undef TILE
  return cudaErrorInvalidValue;
}

template <int X, int CODE>
int launch_prefill(int group, const TileShape& tile, const Call& call, const Plan& plan,
                   const Result& result, const Workspace& workspace, void* stream) {
  if constexpr (X != SCALED_FLOAT16)
    if (group == 0) return launch_tile<X, CODE, 0>(tile, call, plan, result, workspace, stream);
  if (group == 64) return launch_tile<X, CODE, 64>(tile, call, plan, result, workspace, stream);
  if (group == 128) return launch_tile<X, CODE, 128>(tile, call, plan, result, workspace, stream);
  return cudaErrorInvalidValue;
}
