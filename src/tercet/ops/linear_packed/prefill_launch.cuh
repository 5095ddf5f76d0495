// One launch of prefill_kernel.cuh, and the shapes that exist.
#pragma once
#include "prefill_kernel.cuh"

struct Call {
  const void *x, *codes;
  int64_t x_pitch;  // bytes from token to token, a multiple of 16
  int columns, clusters;
};

template <class S>
int launch(const Call& call, Plan plan, const Result& result, const Parts& parts, void* to) {
  const auto stream = static_cast<cudaStream_t>(to);
  const cuuint64_t tokens = result.tokens, blocks = (result.rows + 15) / 16;
  plan.depth = (call.columns + DEPTH - 1) / DEPTH;
  plan.tiles_m = (result.tokens + S::T - 1) / S::T;
  plan.tiles_n = (result.rows + S::ROWS * S::CLUSTER - 1) / (S::ROWS * S::CLUSTER);
  const int cut = plan.tiles_m * plan.tiles_n - plan.whole;
  if (cut && (S::GROUP || S::SPLIT > 1)) return cudaErrorInvalidValue;
  if (S::SPLIT > 1 && (plan.depth < S::SPLIT || call.clusters < plan.whole))
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
                           {S::MB * 16, S::Own::TURN},
                           S::MB == 2 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B);
    if (error) return error;
  }
  if (cut) {
    const size_t bytes = sizeof(int) * cut * S::CLUSTER * S::TEAMS;
    error = cudaMemsetAsync(parts.arrivals, 0, bytes, stream);
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
  config.numAttrs = cut ? 1 : 2;  // after a memset nothing begins early
  return cudaLaunchKernelEx(&config, kernel, x_map, w_map, scale_map, y_map, plan, result, parts);
}

// MB, T, CLUSTER, SPLIT, TEAMS; cuda_wgmma_plan.py knows them by their index. Where scales are of
// groups, every register that sums take is taken twice: only those of 64 rows a group of warps exist.
template <int X, int CODE, int GROUP>
int launch_shape(int shape, const Call& call, const Plan& plan, const Result& result,
                 const Parts& parts, void* stream) {
#define SHAPE(...) \
  return launch<Shape<X, CODE, GROUP, __VA_ARGS__>>(call, plan, result, parts, stream)
  if constexpr (X == E4M3) {
    if (shape == 19) SHAPE(1, 128, 1);
    if (shape == 20) SHAPE(1, 176, 1);
    if (shape == 21) SHAPE(1, 64, 2);
    if constexpr (GROUP == 0) switch (shape) {
        case 22: SHAPE(2, 64, 1);
        case 23: SHAPE(2, 32, 1);
        case 24: SHAPE(1, 64, 1, 2);
        case 25: SHAPE(1, 128, 1, 2);
        case 26: SHAPE(1, 32, 1, 2);
      }
  } else {
    if (shape == 4) SHAPE(1, 128, 1);
    if (shape == 6) SHAPE(1, 64, 2);
  }
  if constexpr (X == INT8 || (GROUP == 0 && X != E4M3)) switch (shape) {
      case 8: SHAPE(1, 64, 1, 2);
      case 9: SHAPE(1, 64, 1, 4);
      case 12: SHAPE(1, 128, 1, 2);
      case 13: SHAPE(1, 128, 1, 4);
    }
  if constexpr (GROUP == 0 && X != E4M3) switch (shape) {
      case 0: SHAPE(2, 128, 1);
      case 1: SHAPE(2, 128, 2);
      case 5: SHAPE(2, 64, 1);
      case 7: SHAPE(2, 32, 1);
      case 10: SHAPE(2, 64, 1, 2);
      case 11: SHAPE(2, 64, 1, 4);
      case 17: SHAPE(1, 32, 1, 2);
      case 18: SHAPE(2, 32, 1, 2);
    }
  if constexpr (GROUP == 0 && X == INT8) switch (shape) {
      case 2: SHAPE(1, 256, 1);
      case 3: SHAPE(1, 256, 2);
      case 14: SHAPE(2, 176, 1);
      case 15: SHAPE(1, 128, 1, 1, 3);
    }
  if constexpr (GROUP == 0 && X != INT8 && X != E4M3) switch (shape) {
      case 16: SHAPE(1, 128, 1, 1, 4);
    }
#undef SHAPE
  return cudaErrorInvalidValue;
}

template <int X, int CODE>
int launch_prefill(int group, int shape, const Call& call, const Plan& plan, const Result& result,
                   const Parts& parts, void* stream) {
  if (group == 0) return launch_shape<X, CODE, 0>(shape, call, plan, result, parts, stream);
  if (group == 64) return launch_shape<X, CODE, 64>(shape, call, plan, result, parts, stream);
  if (group == 128) return launch_shape<X, CODE, 128>(shape, call, plan, result, parts, stream);
  return cudaErrorInvalidValue;
}

// x_pitch: bytes from token to token, a multiple of 16. Types: 0 float32, 1 float16, 2 bfloat16.
// x_scale, bias and residual may be null. `sums` and `arrivals` are needed where whole < all tiles.
// `group`: 0, or 64 or 128 columns a scale. Returns a cudaError_t.
#define TERCET_LINEAR_PREFILL(X, CODE)                                                           \
  extern "C" int tercet_linear_prefill(                                                          \
      int group, int shape, const void* x, int64_t x_pitch, const float* x_scale,                \
      const void* codes, const void* w_scale, int w_scale_type, const void* bias, int bias_type, \
      const void* residual, void* y, int type, int tokens, int rows, int columns, int clusters,  \
      int whole, int part, int band, int early, void* sums, int* arrivals, void* stream) {       \
    const int groups = group ? (columns + group - 1) / group : 1;                                \
    const Call call = {x, codes, x_pitch, columns, clusters};                                    \
    const Plan plan = {0, 0, 0, whole, part, band, early};                                       \
    const bool mapped = type != FLOAT32 && !residual && rows % 8 == 0;                           \
    const Result result = {w_scale, bias,   residual, x_scale, y,      w_scale_type, bias_type,  \
                           type,    mapped, tokens,   rows,    groups};                          \
    const Parts parts = {static_cast<int4*>(sums), arrivals};                                    \
    return launch_prefill<X, CODE>(group, shape, call, plan, result, parts, stream);             \
  }
