// Chooses the instance of decode.cuh for one type of x and launches it.
#pragma once
#include "decode.cuh"

struct Launch {
  int bits, pieces, warps, blocks, dependent;  // pieces: units at a time
};

template <int BITS, int TILES, class X, Scales SCALES, int UNITS>
static int launch(Task task, const Launch& how, cudaStream_t stream) {
  auto kernel = decode<BITS, TILES, X, SCALES, UNITS>;
  using U = Unit<BITS, TILES, X>;
  task.stage_bytes = UNITS * 512;
  if (SCALES != OF_ROWS) {
    const int touched = ((UNITS * U::STEPS - 1) >> task.group_steps_log2) + 2;
    task.stage_bytes += (touched < task.groups ? touched : task.groups) * 16 *
                        bytes_of(task.scale_type) * (SCALES == WITH_ZEROS ? 2 : 1);
  }
  task.stage_bytes = (task.stage_bytes + 127) / 128 * 128;
  const Places places(task, how.warps, UNITS * U::BYTES,
                      SCALES == WITH_ZEROS ? UNITS * U::SUM_BYTES : 0,
                      sizeof(X) == 1 && SCALES == OF_ROWS);
  constexpr int MOST_DEVICES = 64;
  static int allowed[MOST_DEVICES] = {};
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
  if (places.end > allowed[device]) {
    // every instance asks for the same split of the L1: a change of it would wait for the SM to empty
    cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (status == cudaSuccess)
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, places.end);
    if (status != cudaSuccess) return cudaGetLastError(), status;
    allowed[device] = places.end;
  }
  cudaLaunchAttribute dependent;
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(how.blocks);
  config.blockDim = dim3(how.warps * 32);
  config.dynamicSmemBytes = places.end;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = how.dependent ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, task);
  return status != cudaSuccess ? (cudaGetLastError(), status) : 0;
}

template <int BITS, int TILES, class X>
static int with_scales(const Task& task, const Launch& how, cudaStream_t stream) {
#ifdef DECODE_SWEEP
  if constexpr (TILES == 1 && BITS == 2 && sizeof(X) == 1) {
    if (how.pieces == 2) return launch<BITS, TILES, X, OF_ROWS, 2>(task, how, stream);
    if (how.pieces == 7) return launch<BITS, TILES, X, OF_ROWS, 7>(task, how, stream);
    if (how.pieces == 8) return launch<BITS, TILES, X, OF_ROWS, 8>(task, how, stream);
  }
#endif
  // at most 64 registers of x a lane; groups need some for themselves
  constexpr int EACH = Unit<BITS, TILES, X>::STEPS * Unit<BITS, TILES, X>::STEP_WORDS * TILES;
  constexpr int OF_GROUP = EACH >= 16 ? 2 : 4, OF_ROW = EACH > 16 ? 2 : 4;
  if (task.zero) return launch<BITS, TILES, X, WITH_ZEROS, OF_GROUP>(task, how, stream);
  if (task.groups > 1) return launch<BITS, TILES, X, OF_GROUPS, OF_GROUP>(task, how, stream);
  return launch<BITS, TILES, X, OF_ROWS, OF_ROW>(task, how, stream);
}

template <int BITS, class X>
static int with_tiles(const Task& task, const Launch& how, cudaStream_t stream) {
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
