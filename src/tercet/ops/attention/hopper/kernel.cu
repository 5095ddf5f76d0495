// attention of 16-bit floats on Hopper: the library of heads of up to TERCET_WIDTH columns (64, 128 or 256), of
// which TMA fills those that are missing with zeros and stores none. Chooses the instance of kernel.cuh and launches it.
#include "kernel.cuh"

// [first axis, second, third, WIDTH] with its strides, the second and third in the order that the map wants them
static int encode(CUtensorMap* map, const Task& task, const void* data, int first, int second, int third,
                  int64_t first_stride, int64_t second_stride, int64_t third_stride, int rows) {
  const auto type = task.half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto bytes = [](int64_t stride) { return static_cast<cuuint64_t>(stride * 2); };
  const auto size = [](int of) { return static_cast<cuuint64_t>(of); };
  return tma::encode<4>(map, type, data, {size(task.width), size(third), size(second), size(first)},
                        {bytes(third_stride), bytes(second_stride), bytes(first_stride)},
                        {CHUNK, static_cast<cuuint32_t>(rows), 1, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <class S>
static int launch(const Task& task, cudaStream_t stream) {
  CUtensorMap q, keys, values, y;
  const Strides &of_q = task.q_strides, &of_k = task.keys_strides, &of_v = task.values_strides;
  const int64_t row = int64_t(task.heads) * task.width;
  int error = encode(&q, task, task.q, task.batch, task.heads, task.fresh, of_q.first, of_q.third,
                     of_q.second, QUERIES);
  if (!error)
    error = encode(&keys, task, task.keys, task.batch, task.groups, task.length, of_k.first, of_k.second,
                   of_k.third, S::POSITIONS);
  if (!error)
    error = encode(&values, task, task.values, task.batch, task.groups, task.length, of_v.first,
                   of_v.second, of_v.third, S::POSITIONS);
  if (!error)
    error = encode(&y, task, task.y, task.batch, task.heads, task.fresh, task.fresh * row, task.width, row,
                   QUERIES);
  if (error) return error;
  const auto kernel = attend<S>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error) return cudaGetLastError(), error;
  const int64_t tiles = int64_t(task.fresh + S::TILE - 1) / S::TILE * task.heads * task.batch;
  const int blocks = static_cast<int>(tiles < task.processors ? tiles : task.processors);
  kernel<<<blocks, S::THREADS, S::BYTES, stream>>>(q, keys, values, y, task);
  return cudaGetLastError();
}

// Three warpgroups' queries take fewer keys and values each; wider heads, and caps, have no registers for
// them, and of short prompts there are too few tiles.
template <class X>
static int with_caps(const Task& task, cudaStream_t stream) {
  constexpr int POSITIONS = TERCET_WIDTH == 256 ? 80 : 128, STAGES = 2;
  if (task.most != 0.0f) return launch<Shape<X, TERCET_WIDTH, 2, POSITIONS, STAGES, true>>(task, stream);
  if constexpr (TERCET_WIDTH == 64)
    if (task.many) return launch<Shape<X, TERCET_WIDTH, 3, POSITIONS, STAGES, false>>(task, stream);
  return launch<Shape<X, TERCET_WIDTH, 2, POSITIONS, STAGES, false>>(task, stream);
}

// Nothing is empty. Returns a cudaError_t.
extern "C" int tercet_attention(const Task* task, void* to) {
  const cudaStream_t stream = static_cast<cudaStream_t>(to);
  return task->half ? with_caps<__half>(*task, stream) : with_caps<__nv_bfloat16>(*task, stream);
}
