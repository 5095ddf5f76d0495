// softmax of long rows, streamed: a cluster of blocks holds one row in registers while the copy
// engine brings the next one into its shared memory (row_stream.cuh), so that loads never wait for
// arithmetic, exchanges or stores. One block of 512 threads a multiprocessor and two blocks a row of
// 131072 (or twice as many of half as many threads), one cluster barrier a row.
#include <cooperative_groups.h>

#include "kernel/device/row_stream.cuh"
#include "kernel/device/row_sums.cuh"

namespace cg = cooperative_groups;
using row_stream::WarpShare;

constexpr int VECTORS = 16, MOST_WARPS = 16, MAX_CLUSTER = 8;

// over the block, the same in every thread and in every run
__device__ Sum over_block(Sum sum, float k, float2* sums, int warps) {
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    const Sum other(__shfl_xor_sync(~0u, sum.top, d), __shfl_xor_sync(~0u, sum.total, d));
    // both of a pair add in the same order
    const bool lower = (threadIdx.x & d) == 0;
    Sum first = lower ? sum : other;
    first.merge(lower ? other : sum, k);
    sum = first;
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = make_float2(sum.top, sum.total);
  __syncthreads();
  sum = Sum();
  for (int w = 0; w < warps; w++) sum.merge(Sum(sums[w].x, sums[w].y), k);
  return sum;
}

// keeps the compiler from holding the numbers as floats from one pass to the next: they would spill
__device__ __forceinline__ void as_packed(uint4 (&held)[VECTORS]) {
#pragma unroll
  for (int i = 0; i < VECTORS; i++)
    asm volatile("" : "+r"(held[i].x), "+r"(held[i].y), "+r"(held[i].z), "+r"(held[i].w));
}

template <typename T, bool WIDE>
__device__ __forceinline__ void write(const uint4 (&held)[VECTORS], const WarpShare<VECTORS>& share,
                                      const Shifted& result, float factor, uint4* y) {
  float values[Lanes<T>::COUNT];
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    Lanes<T>::load(held[i], values);
#pragma unroll
    for (int j = 0; j < Lanes<T>::COUNT; j++)
      values[j] = result.template power<WIDE>(values[j]) * factor;
    if (share.inside(i)) y[32 * i] = Lanes<T>::store(values);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1)
    forward(const void* x, uint4* y, int rows, int units, int64_t stride_bytes, float scale,
            uint32_t nothing) {
  extern __shared__ __align__(128) uint4 memory[];
  __shared__ uint64_t barriers[MOST_WARPS * row_stream::MAX_STAGES];
  __shared__ float2 sums[MOST_WARPS];
  __shared__ float2 parts[2][MAX_CLUSTER];
  cg::cluster_group cluster = cg::this_cluster();
  const int cluster_size = cluster.num_blocks(), rank = cluster.block_rank();
  WarpShare<VECTORS> share(x, stride_bytes, rows, units, 1, memory, barriers, cluster_size, nothing);
  const int warps = blockDim.x / 32, step = gridDim.x / cluster_size;
  const float k = scale * LOG2E;
  int row = blockIdx.x / cluster_size, side = 0;
  // nobody may write into a block's memory before that block runs
  cluster.sync();
  for (; row < rows; row += step, side ^= 1) {
    uint4 held[VECTORS];
    uint4* out_row = y + static_cast<int64_t>(row) * units + share.unit(0);
    share.take(held);
    float top = -INFINITY, total = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) top = Lanes<T>::largest(held[i], top);
    share.taken();
    as_packed(held);
    const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      float values[Lanes<T>::COUNT];
      Lanes<T>::load(held[i], values);
#pragma unroll
      for (int j = 0; j < Lanes<T>::COUNT; j++) total += exp2_fast((values[j] - base) * k);
    }
    as_packed(held);
    Sum sum = over_block(Sum(top, total), k, sums, warps);
    if (threadIdx.x < cluster_size)
      *cluster.map_shared_rank(&parts[side][rank], threadIdx.x) = make_float2(sum.top, sum.total);
    cluster.sync();
    sum = Sum();
    for (int r = 0; r < cluster_size; r++) sum.merge(Sum(parts[side][r].x, parts[side][r].y), k);
    // where all is -inf there is no softmax: -inf - (-inf) is NaN
    const Shifted result(sum.top, k);
    const float factor = result.rest / sum.total;
    if (result.wide)
      write<T, true>(held, share, result, factor, out_row);
    else
      write<T, false>(held, share, result, factor, out_row);
  }
}

template <typename T>
int launch(const void* x, void* y, int rows, int units, int64_t stride_bytes, float scale,
           uint32_t nothing, int cluster, int warps, void* stream) {
  const int bytes = row_stream::slot_bytes(VECTORS, warps, 1);
  const auto kernel = forward<T>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(32 * warps);
  config.dynamicSmemBytes = bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int fit;
  error = cudaOccupancyMaxActiveClusters(&fit, kernel, &config);
  if (error != cudaSuccess) return error;
  if (fit == 0) return cudaErrorLaunchOutOfResources;
  const int rounds = (rows + fit - 1) / fit;
  config.gridDim = dim3(cluster * ((rows + rounds - 1) / rounds));
  return cudaLaunchKernelEx(&config, kernel, x, static_cast<uint4*>(y), rows, units, stride_bytes,
                            scale, nothing);
}

// dtype: 0 float32, 1 float16, 2 bfloat16. n a multiple of 16 bytes; 32 * 16 * warps * cluster units
// of 16 bytes hold a row. Returns a cudaError_t.
extern "C" int tercet_softmax_stream(int dtype, const void* x, void* y, int rows, int units,
                                     int64_t stride_bytes, float scale, int cluster, int warps,
                                     void* stream) {
#define FORWARD(T, NOTHING) \
  launch<T>(x, y, rows, units, stride_bytes, scale, NOTHING, cluster, warps, stream)
  // two of -inf in a word, or one
  if (dtype == 0) return FORWARD(float, 0xff800000u);
  if (dtype == 1) return FORWARD(__half, 0xfc00fc00u);
  return FORWARD(__nv_bfloat16, 0xff80ff80u);
}
