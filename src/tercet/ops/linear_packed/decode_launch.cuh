// Chooses the instance of decode.cuh for one type of x and launches it.
#pragma once
#include "decode.cuh"

struct Launch {
  int bits, depth, warps, blocks, dependent;  // blocks: clusters in the grid
};

template <int BITS, int TILES, class X, bool GROUPED, int DEPTH>
static int launch(const Task& task, const Launch& how, cudaStream_t stream) {
  auto kernel = decode<BITS, TILES, X, GROUPED, DEPTH>;
  using U = Unit<BITS, TILES, X>;
  const int rows = (task.row_blocks + how.blocks - 1) / how.blocks;
  const int units = (task.units + task.ranks - 1) / task.ranks;
  int groups = 1;
  if (GROUPED) {
    const int whole = ((units * U::STEPS - 1) >> task.group_steps_log2) + 2;
    groups = whole < task.groups ? whole : task.groups;
  }
  const Places places(task.m, units * U::BYTES, rows, how.warps, task.team, TILES, groups,
                      bytes_of(task.scale_type));
  // the lanes of a last, partial tile read past the rows of x
  const int reach = Places::X + TILES * 8 * places.row_stride;
  const int bytes = TILES > 1 && reach > places.end ? reach : places.end;
  static int allowed = 48 * 1024;
  if (bytes > allowed) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return cudaGetLastError(), status;
    allowed = bytes;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(how.blocks * task.ranks);
  config.blockDim = dim3(how.warps * 32);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (task.ranks > 1) {
    cudaLaunchAttribute& one = attributes[config.numAttrs++];
    one.id = cudaLaunchAttributeClusterDimension;
    one.val.clusterDim.x = task.ranks;
    one.val.clusterDim.y = one.val.clusterDim.z = 1;
  }
  if (how.dependent) {
    cudaLaunchAttribute& one = attributes[config.numAttrs++];
    one.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    one.val.programmaticStreamSerializationAllowed = 1;
  }
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, task);
  return status != cudaSuccess ? (cudaGetLastError(), status) : 0;
}

template <int BITS, int TILES, class X>
static int with_groups(const Task& task, const Launch& how, cudaStream_t stream) {
  constexpr int USUAL = TILES <= 2 ? 6 : 4;
  if (task.groups > 1) return launch<BITS, TILES, X, true, USUAL>(task, how, stream);
  // other depths only where the sweep of the bench asks for them
  if constexpr (TILES == 1 && BITS == 2) {
    if (how.depth == 4) return launch<BITS, TILES, X, false, 4>(task, how, stream);
    if (how.depth == 8) return launch<BITS, TILES, X, false, 8>(task, how, stream);
  }
  return launch<BITS, TILES, X, false, USUAL>(task, how, stream);
}

template <int BITS, class X>
static int with_tiles(const Task& task, const Launch& how, cudaStream_t stream) {
  if (task.m <= 8) return with_groups<BITS, 1, X>(task, how, stream);
  if (task.m <= 16) return with_groups<BITS, 2, X>(task, how, stream);
  if (task.m <= 32) return with_groups<BITS, 4, X>(task, how, stream);
  return with_groups<BITS, 8, X>(task, how, stream);
}

template <class X> static int with_bits(const Task& task, const Launch& how, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (how.bits == 2) return with_tiles<2, X>(task, how, on);
  if (how.bits == 4) return with_tiles<4, X>(task, how, on);
  if (how.bits == 8) return with_tiles<8, X>(task, how, on);
  return cudaErrorInvalidValue;
}
