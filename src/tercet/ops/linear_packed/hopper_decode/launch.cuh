// Chooses the instance of kernel.cuh for one type of x and launches it.
#pragma once
#include "kernel.cuh"

// bytes: of x, a row and unit; of what lies beside x, a unit; of a warp's scales of groups
static SharedMemory shared_memory_of(const Task& task, const Launch& how, int x_rows, int x_bytes, int sum_bytes,
                        int scale_bytes) {
  SharedMemory at;
  const int rows = task.rows_most, units = how.warps_k * task.warp_units;
  at.row_stride = units * x_bytes + 16;
  at.x = SharedMemory::SCALES + (rows * 64 + 127) / 128 * 128;
  at.slots = at.x + task.m * x_rows * at.row_stride;
  at.x_sums = at.slots + rows * how.warps_k * task.m * SharedMemory::SLOT_PITCH * 4;
  at.scales = at.x_sums + units * sum_bytes;
  at.end = at.scales + how.warps_k * how.warps_n * scale_bytes;
  return at;
}

template <int BITS, int TILES, class X, Scales SCALES>
static int launch(Task task, const Launch& how, cudaStream_t stream) {
  auto kernel = decode<BITS, TILES, X, SCALES>;
  using P = Pace<BITS, TILES, X, SCALES>;
  const SharedMemory shared = task.shared =
      shared_memory_of(task, how, P::X_ROWS, P::U::BYTES, P::SUM_BYTES, P::SCALE_BYTES);
  constexpr int MOST_DEVICES = 64;
  static int allowed[MOST_DEVICES] = {};
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
  if (shared.end > allowed[device]) {
    // every instance asks for the same split of the L1: a change of it would wait for the SM to empty
    cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (status == cudaSuccess)
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared.end);
    if (status != cudaSuccess) return cudaGetLastError(), status;
    allowed[device] = shared.end;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(how.cluster_size, how.clusters);
  config.blockDim = dim3(32, how.warps_k, how.warps_n);
  config.dynamicSmemBytes = shared.end;
  config.stream = stream;
  config.attrs = attributes;
  if (task.pdl) {
    cudaLaunchAttribute& pdl = attributes[config.numAttrs++];
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
  }
  if (how.cluster_size > 1 || how.multicast > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    const unsigned multicast = how.multicast > 1 ? how.multicast : 1;
    cluster.val.clusterDim = {static_cast<unsigned>(how.cluster_size), multicast, 1};
  }
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, task);
  return status != cudaSuccess ? (cudaGetLastError(), status) : 0;
}

// scales of groups without zero points
template <int BITS, int TILES, class X>
static int of_groups(const Task& task, const Launch& how, cudaStream_t stream) {
  const int steps = 1 << task.group_steps_log2;
  if constexpr (BITS == 2)
    if (steps == 2) return launch<BITS, TILES, X, OF_PAIRS>(task, how, stream);
  if constexpr (BITS < 8)
    if (steps < 8 / BITS) return launch<BITS, TILES, X, OF_STEPS>(task, how, stream);
  return launch<BITS, TILES, X, OF_UNITS>(task, how, stream);
}

template <int BITS, int TILES, class X>
static int with_scales(const Task& task, const Launch& how, cudaStream_t stream) {
  if (task.zero) {
    // ternary levels need none
    if constexpr (BITS > 2) return launch<BITS, TILES, X, WITH_ZEROS>(task, how, stream);
    else return cudaErrorInvalidValue;
  }
  if (task.groups == 1) return launch<BITS, TILES, X, OF_ROWS>(task, how, stream);
  return of_groups<BITS, TILES, X>(task, how, stream);
}

template <int BITS, class X>
static int with_tiles(const Task& task, const Launch& how, cudaStream_t stream) {
  if constexpr (sizeof(X) == 2)
    if (how.digits)
      return task.groups == 1 ? launch<BITS, 1, Digits<X>, OF_ROWS>(task, how, stream)
                              : of_groups<BITS, 1, Digits<X>>(task, how, stream);
  if constexpr (std::is_same_v<X, int8_t>)
    if (task.x_type != 3)
      return task.m <= 8 ? with_scales<BITS, 1, Quantized>(task, how, stream) : cudaErrorInvalidValue;
  if (task.m <= 8) return with_scales<BITS, 1, X>(task, how, stream);
  if (task.m <= 16) return with_scales<BITS, 2, X>(task, how, stream);
  return cudaErrorInvalidValue;
}

template <class X> static int with_bits(const Task& task, const Launch& how, void* stream) {
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  if (how.bits == 2) return with_tiles<2, X>(task, how, on);
  if (how.bits == 4) return with_tiles<4, X>(task, how, on);
  if (how.bits == 8) return with_tiles<8, X>(task, how, on);
  return cudaErrorInvalidValue;
}

// weights of 8-bit floats: no zero points
template <class X> static int with_floats(const Task& task, const Launch& how, void* to) {
  const cudaStream_t stream = static_cast<cudaStream_t>(to);
  if (how.bits != 8 || task.zero || task.m > 16) return cudaErrorInvalidValue;
  const bool many = task.m > 8;
  if (task.groups == 1)
    return many ? launch<8, 2, X, OF_ROWS>(task, how, stream) : launch<8, 1, X, OF_ROWS>(task, how, stream);
  return many ? launch<8, 2, X, OF_UNITS>(task, how, stream) : launch<8, 1, X, OF_UNITS>(task, how, stream);
}
