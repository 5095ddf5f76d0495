// paged_attention of 16-bit floats on Hopper: the library of one kind of keys and values, TERCET_CACHE (Floats, Int8,
// E4M3 or Int4). Chooses the instance of kernel.cuh and launches it.
#include "kernel.cuh"

template <int WIDTH, int ROWS, int WARPS, int BLOCKS, class X>
static int launch(const Task& task, cudaStream_t stream) {
  auto kernel = attend<WIDTH, ROWS, WARPS, BLOCKS, X, TERCET_CACHE>;
  constexpr int BYTES = Memory<WIDTH, ROWS, WARPS, BLOCKS, TERCET_CACHE>::END, MOST_DEVICES = 64;
  static bool allowed[MOST_DEVICES] = {};
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
  if (!allowed[device]) {
    // as the products around it: a change of the L1's split would wait for the SM to empty
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                              cudaSharedmemCarveoutMaxShared);
    if (status == cudaSuccess)
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    // clusters of 16
    if (status == cudaSuccess) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (status != cudaSuccess) return cudaGetLastError(), status;
    allowed[device] = true;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1 << task.blocks_log2, task.batch * task.groups * task.row_tiles * task.splits);
  config.blockDim = dim3(32, WARPS, 1);
  config.dynamicSmemBytes = BYTES;
  config.stream = stream;
  config.attrs = attributes;
  if (task.pdl) {
    cudaLaunchAttribute& pdl = attributes[config.numAttrs++];
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
  }
  if (task.blocks_log2) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1u << task.blocks_log2, 1, 1};
  }
  cudaError_t status = cudaLaunchKernelEx(&config, kernel, task);
  if (status == cudaSuccess && task.splits > 1) {
    config.gridDim = dim3(1, task.batch * task.fresh * task.groups * task.shared);
    config.blockDim = dim3(32, WIDTH / 64, 1);
    config.dynamicSmemBytes = 0;
    config.numAttrs = task.pdl ? 1 : 0;  // no cluster
    status = cudaLaunchKernelEx(&config, merge<X>, task);
  }
  return status != cudaSuccess ? (cudaGetLastError(), status) : 0;
}

template <int WIDTH, int ROWS, class X> static int with_warps(const Task& task, cudaStream_t stream) {
  if constexpr (TERCET_CACHE::BITS < 16 && ROWS == 8)
    if (task.warps == 4 && task.together == 4) return launch<WIDTH, ROWS, 4, 4, X>(task, stream);
  if (task.warps == 4 && task.together == 2) return launch<WIDTH, ROWS, 4, 2, X>(task, stream);
  if (task.warps == 8 && task.together == 1) return launch<WIDTH, ROWS, 8, 1, X>(task, stream);
  return cudaErrorInvalidValue;
}

template <int WIDTH, class X> static int with_rows(const Task& task, cudaStream_t stream) {
  if (task.tile_rows == 8) return with_warps<WIDTH, 8, X>(task, stream);
  if (task.tile_rows == 16) return with_warps<WIDTH, 16, X>(task, stream);
  return cudaErrorInvalidValue;
}

template <class X> static int with_width(const Task& task, cudaStream_t stream) {
  if (task.width == 64) return with_rows<64, X>(task, stream);
  if (task.width == 128) return with_rows<128, X>(task, stream);
  return cudaErrorInvalidValue;
}

extern "C" int tercet_paged_attention(const Task* task, void* to) {
  const cudaStream_t stream = static_cast<cudaStream_t>(to);
  return task->half ? with_width<__half>(*task, stream) : with_width<__nv_bfloat16>(*task, stream);
}
