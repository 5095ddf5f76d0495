// Losses of rows of logits, and their gradient: every logit is read once and its gradient written
// once, whatever the row's length. A cluster of blocks keeps a row on chip (long_row.cuh).
//
//   lse = log sum exp z,  loss = lse - z[target],  grad = (softmax(z) - onehot(target)) unit
//
// Logits lie in pieces of `piece` classes, a multiple of 16: piece s is [rows, its classes], from
// element s piece rows on. The gradient of piece 0 goes to `first`; that of another piece where the
// logits of the piece before it lay, with rows `piece` apart: over logits of the same row, which are
// on chip by then. One piece alone with `first` = `logits` is a plain matrix, overwritten in place.
#include <cooperative_groups.h>

#include "kernel/device/long_row.cuh"

namespace cg = cooperative_groups;

template <typename T> struct Chunks {
  T *logits, *first;
  int64_t rows;
  int n, piece;
  uint32_t inverse;  // of piece / 8, times 2^32, rounded up
  // the first element of its piece; exact, as n and piece are below 2^19
  __device__ int start(int element) const {
    return static_cast<int>(__umulhi(element / 8u, inverse)) * piece;
  }
  __device__ T* logit(int64_t row, int element) const {
    const int from = start(element);
    return logits + from * rows + row * min(piece, n - from) + (element - from);
  }
  __device__ T* grad(int64_t row, int element) const {
    const int from = start(element);
    if (from == 0) return first + row * min(piece, n) + element;
    return logits + (from - piece) * rows + row * piece + (element - from);
  }
};

// softmax times the unit; zeros where the token does not count
template <typename T, bool WIDE>
__device__ void write(const Chunks<T>& chunks, int64_t row, int begin, const uint4* mine,
                      const uint4* kept, const Shifted& result, float factor, bool counts) {
  constexpr int COUNT = Lanes<T>::COUNT;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int at = begin + i * THREADS * COUNT;
    if (at >= chunks.n) continue;
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (counts) {
      float values[COUNT];
      Lanes<T>::load(i < STASHED ? mine[i * THREADS] : kept[i < STASHED ? 0 : i - STASHED], values);
#pragma unroll
      for (int j = 0; j < COUNT; j++) values[j] = result.template power<WIDE>(values[j]) * factor;
      vector = Lanes<T>::store(values);
    }
    *reinterpret_cast<uint4*>(chunks.grad(row, at)) = vector;
  }
}

template <typename T, bool GRADIENT>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    softmax_rows(const Chunks<T> chunks, const int64_t* targets, int64_t ignore_index,
                 const float* unit, float* losses, float* lses) {
  extern __shared__ uint4 memory[];
  __shared__ float2 sums[WARPS];
  __shared__ float2 parts[MAX_CLUSTER];
  cg::cluster_group cluster = cg::this_cluster();
  const int cluster_size = cluster.num_blocks(), rank = cluster.block_rank();
  const int64_t row = blockIdx.x / cluster_size;
  constexpr int COUNT = Lanes<T>::COUNT;
  // nobody may write into a block's memory before that block runs
  cluster.barrier_arrive();
  const int begin = (rank * VECTORS * THREADS + threadIdx.x) * COUNT;
  uint4* mine = memory + threadIdx.x;

#pragma unroll
  for (int i = 0; i < STASHED; i++) {
    const int at = begin + i * THREADS * COUNT;
    if (at < chunks.n) stash(mine + i * THREADS, chunks.logit(row, at));
    if (i % GROUP == GROUP - 1) asm volatile("cp.async.commit_group;" ::: "memory");
  }
  uint4 kept[KEPT];
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    const int at = begin + (STASHED + i) * THREADS * COUNT;
    if (at < chunks.n) kept[i] = *reinterpret_cast<const uint4*>(chunks.logit(row, at));
  }
  const int64_t target = targets[row];
  const bool valid = target >= 0 && target < chunks.n;
  // before anybody overwrites it
  float picked = __int_as_float(0x7fffffff);
  if (valid) picked = static_cast<float>(*chunks.logit(row, static_cast<int>(target)));

  Sum sum;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    if (i % GROUP == 0 && i < STASHED) arrived(STASHED / GROUP - 1 - i / GROUP);
    if (begin + i * THREADS * COUNT < chunks.n)
      sum.add<T>(i < STASHED ? mine[i * THREADS] : kept[i < STASHED ? 0 : i - STASHED], LOG2E);
  }
  sum = over_block(sum, LOG2E, sums);
  cluster.barrier_wait();
  if (threadIdx.x < cluster_size)
    *cluster.map_shared_rank(&parts[rank], threadIdx.x) = make_float2(sum.top, sum.total);
  cluster.sync();
  sum = Sum();
  for (int r = 0; r < cluster_size; r++) sum.merge(Sum(parts[r].x, parts[r].y), LOG2E);

  const bool counts = target != ignore_index;
  if (rank == 0 && threadIdx.x == 0) {
    // the maximum apart: an lse of 10,000 is off by 5e-4 in float32
    const float rest = logf(sum.total);
    lses[row] = sum.top + rest;
    losses[row] = counts ? rest - (picked - sum.top) : 0.f;
  }
  if (GRADIENT) {
    const float scale = valid ? *unit : __int_as_float(0x7fffffff);
    const Shifted result(sum.top, LOG2E);
    const float factor = result.rest / sum.total * scale;
    if (result.wide)
      write<T, true>(chunks, row, begin, mine, kept, result, factor, counts);
    else
      write<T, false>(chunks, row, begin, mine, kept, result, factor, counts);
    // by the thread that wrote the softmax there
    const int hot = static_cast<int>(target) - begin;
    if (counts && valid && hot >= 0 && hot < VECTORS * THREADS * COUNT &&
        hot % (THREADS * COUNT) < COUNT) {
      const float power = result.wide ? result.power<true>(picked) : result.power<false>(picked);
      *chunks.grad(row, static_cast<int>(target)) = static_cast<T>(fmaf(power, factor, -scale));
    }
  }
}

template <typename T, bool GRADIENT>
int launch(const Chunks<T>& chunks, const int64_t* targets, int64_t ignore_index, const float* unit,
           float* losses, float* lses, int cluster, void* stream) {
  cudaError_t error = cudaFuncSetAttribute(
      softmax_rows<T, GRADIENT>, cudaFuncAttributeMaxDynamicSharedMemorySize, STASH_BYTES);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(chunks.rows * cluster));
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = STASH_BYTES;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, softmax_rows<T, GRADIENT>, chunks, targets, ignore_index, unit,
                            losses, lses);
}

// dtype: 0 float32, 1 float16, 2 bfloat16. first: null where no gradient is wanted. Returns a
// cudaError_t.
extern "C" int tercet_softmax_rows(int dtype, void* logits, void* first, int64_t rows, int n,
                                   int piece, const int64_t* targets, int64_t ignore_index,
                                   const float* unit, float* losses, float* lses, int cluster,
                                   void* stream) {
  const uint32_t inverse = static_cast<uint32_t>(((1ull << 32) + piece / 8 - 1) / (piece / 8));
#define ROWS(T)                                                                               \
  {                                                                                           \
    const Chunks<T> chunks = {static_cast<T*>(logits), static_cast<T*>(first), rows, n, piece, inverse}; \
    return first ? launch<T, true>(chunks, targets, ignore_index, unit, losses, lses, cluster, \
                                   stream)                                                    \
                 : launch<T, false>(chunks, targets, ignore_index, unit, losses, lses,        \
                                    cluster, stream);                                         \
  }
  if (dtype == 0) ROWS(float)
  if (dtype == 1) ROWS(__half)
  ROWS(__nv_bfloat16)
}
