// softmax of long rows: each row is read once from device memory, whatever its length.
//
// A row of 131072 bfloat16 is 256 KiB: more than one multiprocessor can keep, and with one row on
// each of 132 multiprocessors the second read does not hit the L2 either. So a cluster of blocks
// shares a row. Each thread keeps 16 vectors of 16 bytes, 12 in shared memory and 4 in registers;
// nobody reads another thread's vectors, so loading needs no barrier. Blocks exchange one maximum
// and one sum through distributed shared memory.
//
//   forward   y = exp(scale x) / sum exp(scale x)    2 N elements moved
//   backward  grad_x = scale y (grad - sum grad y)   3 N elements moved; y and grad are both kept
//
// 256 threads and 64 KiB a block: four blocks share a multiprocessor, so that some load while others
// compute or wait. exp is computed twice a value: at 16 a cycle that is 60 % of the time that memory
// takes, so the rest of the arithmetic is kept to a few instructions a value.
#include <cooperative_groups.h>

#include "kernel/device/long_row.cuh"

namespace cg = cooperative_groups;

// what a thread keeps of one row: vector i of the block covers elements of the row from
// ((rank * slots + i) * THREADS + thread) * COUNT on
template <typename T> struct Slice {
  static constexpr int COUNT = Lanes<T>::COUNT;
  int first, step, n;
  __device__ Slice(int rank, int slots, int n)
      : first((rank * slots * THREADS + threadIdx.x) * COUNT), step(THREADS * COUNT), n(n) {}
  __device__ int at(int i) const { return first + i * step; }
  __device__ bool inside(int i) const { return at(i) < n; }
};

template <typename T, bool WIDE>
__device__ void write(const Slice<T>& slice, const uint4* mine, const uint4* kept,
                      const Shifted& result, float factor, T* y) {
  float values[Lanes<T>::COUNT];
#pragma unroll
  for (int i = 0; i < VECTORS; i++)
    if (slice.inside(i)) {
      Lanes<T>::load(i < STASHED ? mine[i * THREADS] : kept[i < STASHED ? 0 : i - STASHED], values);
#pragma unroll
      for (int j = 0; j < Lanes<T>::COUNT; j++)
        values[j] = result.template power<WIDE>(values[j]) * factor;
      *reinterpret_cast<uint4*>(y + slice.at(i)) = Lanes<T>::store(values);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    forward(const T* x, T* y, int n, int64_t x_stride, int64_t y_stride, float scale) {
  extern __shared__ uint4 memory[];
  __shared__ float2 sums[WARPS];
  __shared__ float2 parts[MAX_CLUSTER];
  cg::cluster_group cluster = cg::this_cluster();
  const int cluster_size = cluster.num_blocks(), rank = cluster.block_rank();
  const int64_t row = blockIdx.x / cluster_size;
  x += row * x_stride;
  y += row * y_stride;
  // nobody may write into a block's memory before that block runs
  cluster.barrier_arrive();
  const Slice<T> slice(rank, VECTORS, n);
  uint4* mine = memory + threadIdx.x;

#pragma unroll
  for (int i = 0; i < STASHED; i++) {
    if (slice.inside(i)) stash(mine + i * THREADS, x + slice.at(i));
    if (i % GROUP == GROUP - 1) asm volatile("cp.async.commit_group;" ::: "memory");
  }
  uint4 kept[KEPT];
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    if (slice.inside(STASHED + i))
      kept[i] = *reinterpret_cast<const uint4*>(x + slice.at(STASHED + i));

  // maximum and sum of powers in one pass over what has arrived, each thread by its own maximum
  const float k = scale * LOG2E;
  Sum sum;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    if (i % GROUP == 0 && i < STASHED) arrived(STASHED / GROUP - 1 - i / GROUP);
    if (slice.inside(i))
      sum.add<T>(i < STASHED ? mine[i * THREADS] : kept[i < STASHED ? 0 : i - STASHED], k);
  }
  sum = over_block(sum, k, sums);

  cluster.barrier_wait();
  if (threadIdx.x < cluster_size)
    *cluster.map_shared_rank(&parts[rank], threadIdx.x) = make_float2(sum.top, sum.total);
  cluster.sync();
  sum = Sum();
  for (int r = 0; r < cluster_size; r++) sum.merge(Sum(parts[r].x, parts[r].y), k);
  // where all is -inf there is no softmax: -inf - (-inf) is NaN
  const Shifted result(sum.top, k);
  const float factor = result.rest / sum.total;
  if (result.wide)
    write<T, true>(slice, mine, kept, result, factor, y);
  else
    write<T, false>(slice, mine, kept, result, factor, y);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    backward(const T* grad, const T* y, T* grad_x, int n, int64_t grad_stride, int64_t y_stride,
             int64_t x_stride, float scale) {
  extern __shared__ uint4 memory[];
  __shared__ float lines[WARPS];
  __shared__ float parts[MAX_CLUSTER];
  cg::cluster_group cluster = cg::this_cluster();
  const int cluster_size = cluster.num_blocks(), rank = cluster.block_rank();
  const int64_t row = blockIdx.x / cluster_size;
  grad += row * grad_stride;
  y += row * y_stride;
  grad_x += row * x_stride;
  constexpr int COUNT = Lanes<T>::COUNT, PAIRS = VECTORS / 2, STASHED_PAIRS = STASHED / 2;
  cluster.barrier_arrive();
  const Slice<T> slice(rank, PAIRS, n);
  uint4* mine = memory + threadIdx.x;

#pragma unroll
  for (int i = 0; i < STASHED_PAIRS; i++)
    if (slice.inside(i)) {
      stash(mine + 2 * i * THREADS, y + slice.at(i));
      stash(mine + (2 * i + 1) * THREADS, grad + slice.at(i));
    }
  uint4 kept[KEPT];
#pragma unroll
  for (int i = 0; i < KEPT / 2; i++)
    if (slice.inside(STASHED_PAIRS + i)) {
      const int at = slice.at(STASHED_PAIRS + i);
      kept[2 * i] = *reinterpret_cast<const uint4*>(y + at);
      kept[2 * i + 1] = *reinterpret_cast<const uint4*>(grad + at);
    }
  float a[COUNT], b[COUNT], dot = 0.f;
#pragma unroll
  for (int i = 0; i < KEPT / 2; i++)
    if (slice.inside(STASHED_PAIRS + i)) {
      Lanes<T>::load(kept[2 * i], a);
      Lanes<T>::load(kept[2 * i + 1], b);
#pragma unroll
      for (int j = 0; j < COUNT; j++) dot = fmaf(a[j], b[j], dot);
    }
  stashed();
#pragma unroll
  for (int i = 0; i < STASHED_PAIRS; i++)
    if (slice.inside(i)) {
      Lanes<T>::load(mine[2 * i * THREADS], a);
      Lanes<T>::load(mine[(2 * i + 1) * THREADS], b);
#pragma unroll
      for (int j = 0; j < COUNT; j++) dot = fmaf(a[j], b[j], dot);
    }
  dot = over_block(dot, lines);
  cluster.barrier_wait();
  if (threadIdx.x < cluster_size) *cluster.map_shared_rank(&parts[rank], threadIdx.x) = dot;
  cluster.sync();
  dot = 0.f;
  for (int r = 0; r < cluster_size; r++) dot += parts[r];
#pragma unroll
  for (int i = 0; i < PAIRS; i++)
    if (slice.inside(i)) {
      const bool in_memory = i < STASHED_PAIRS;
      const int at = in_memory ? 0 : 2 * (i - STASHED_PAIRS);
      Lanes<T>::load(in_memory ? mine[2 * i * THREADS] : kept[at], a);
      Lanes<T>::load(in_memory ? mine[(2 * i + 1) * THREADS] : kept[at + 1], b);
#pragma unroll
      for (int j = 0; j < COUNT; j++) a[j] = scale * a[j] * (b[j] - dot);
      *reinterpret_cast<uint4*>(grad_x + slice.at(i)) = Lanes<T>::store(a);
    }
}

template <typename Kernel, typename... Arguments>
int launch(Kernel kernel, int64_t rows, int cluster, void* stream, Arguments... arguments) {
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, STASH_BYTES);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows * cluster));
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = STASH_BYTES;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// dtype: 0 float32, 1 float16, 2 bfloat16. Returns a cudaError_t.
extern "C" int tercet_softmax(int dtype, const void* x, void* y, int64_t rows, int n,
                              int64_t x_stride, int64_t y_stride, float scale, int cluster,
                              void* stream) {
#define FORWARD(T)                                                                         \
  launch(forward<T>, rows, cluster, stream, static_cast<const T*>(x), static_cast<T*>(y), n, \
         x_stride, y_stride, scale)
  if (dtype == 0) return FORWARD(float);
  if (dtype == 1) return FORWARD(__half);
  return FORWARD(__nv_bfloat16);
}

extern "C" int tercet_softmax_gradient(int dtype, const void* grad, const void* y, void* grad_x,
                                       int64_t rows, int n, int64_t grad_stride, int64_t y_stride,
                                       int64_t x_stride, float scale, int cluster, void* stream) {
#define BACKWARD(T)                                                                         \
  launch(backward<T>, rows, cluster, stream, static_cast<const T*>(grad),                   \
         static_cast<const T*>(y), static_cast<T*>(grad_x), n, grad_stride, y_stride, \
         x_stride, scale)
  if (dtype == 0) return BACKWARD(float);
  if (dtype == 1) return BACKWARD(__half);
  return BACKWARD(__nv_bfloat16);
}
