// The epilogue: the partial sums that warps have stored in shared memory become y.
//
// Where a thread has several outputs their instructions count, so it takes four neighbours in y together;
// else each takes one, for which all that it needs besides the sums has been loaded before the mainloop.
#pragma once
#include "task.cuh"

// The outputs of a cluster: Sum is what lies in slots; SCALED: each row of W has one scale, applied here.
//
// Sums of row-block j / 16 over the i-th part of K are at slot(j / 16, i)[m * SLOT_PITCH + j % 16].
template <class Sum, bool SCALED> struct Outputs {
  static constexpr int PITCH = SharedMemory::SLOT_PITCH;
  struct Addend {
    uint32_t bias = 0, residual = 0;
  };
  const Task& task;
  unsigned char* const memory;
  const int rank, cluster_size, thread, threads, parts;
  const int first_row, width;  // of the cluster: row-block, rows of W
  const int slot_words, slot_step;
  const bool many;             // outputs for each thread
  const bool codes_here;       // x_scale of x quantized here is in rows_scale already
  const int mine, my_m, my_j;  // the only output: its number, row of x, place among the rows of W
  uint32_t my_scale = 0;
  float my_x_scale = 1.f;
  Addend my_addend;

  __device__ Outputs(const Task& task, unsigned char* memory, int first_row, int rows, bool codes_here)
      : task(task), memory(memory), rank(blockIdx.x), cluster_size(gridDim.x), thread(thread_of_block()),
        threads(threads_of_block()), parts(blockDim.y), first_row(first_row), width(rows * 16),
        slot_words(task.m * PITCH), slot_step(parts * slot_words),
        many(task.rows_most * 16 * task.m >= cluster_size * threads), codes_here(codes_here),
        mine(rank * threads + thread), my_m(token_of(mine)), my_j(row_of(mine, my_m)) {}

  __device__ __forceinline__ int token_of(int o) const {
    return static_cast<int>((o / 16u * task.rows_inverse) >> 23);
  }
  __device__ __forceinline__ int row_of(int o, int m) const { return o - m * task.rows_most * 16; }
  __device__ __forceinline__ Sum* slot(int row, int slice) const {
    return reinterpret_cast<Sum*>(memory + task.shared.slots) + row * slot_step + slice * slot_words;
  }
  __device__ __forceinline__ Sum* sum_at(int m, int j) const {
    return slot(j / 16, 0) + m * PITCH + j % 16;
  }
  __device__ __forceinline__ float* rows_scale() const {
    return reinterpret_cast<float*>(memory + SharedMemory::ROWS_SCALE);
  }
  __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<float*>(memory + SharedMemory::SCALES);
  }
  __device__ __forceinline__ uint32_t scale_of(int j) const {
    return bits_at(task.scale, first_row * 16 + j, task.scale_type);
  }
  __device__ __forceinline__ Addend addend(int m, int j) const {
    Addend raw;
    const int n = first_row * 16 + j;
    if (m >= task.m || j >= width || n >= task.n) return raw;
    if (task.bias) raw.bias = bits_at(task.bias, n, task.bias_type);
    if (task.residual)
      raw.residual = bits_at(task.residual, m * task.residual_pitch + n, task.residual_type);
    return raw;
  }
  __device__ __forceinline__ float number(const Addend& raw) const {
    return number_of(raw.bias, task.bias_type) + number_of(raw.residual, task.residual_type);
  }

  // what is needed besides the sums: of the weights, and what the previous kernel may have written
  __device__ __forceinline__ void ask_scale() {
    if (SCALED && thread < width) my_scale = scale_of(thread);
  }
  __device__ __forceinline__ void ask_rest() {
    const int m = many ? thread : my_m;
    if (m < task.m && task.x_scale && !codes_here) my_x_scale = task.x_scale[m];
    if (!many) my_addend = addend(my_m, my_j);
  }

  // the sums of EACH neighbours over the block's parts of K, or what lies in a block of the cluster
  template <int EACH>
  __device__ __forceinline__ void sum_here(int m, int j, int active, Sum (&sum)[EACH]) const {
    const Sum* from = sum_at(m, j);
#pragma unroll 4
    for (int slice = 0; slice < active; slice++, from += slot_words) {
      if constexpr (EACH == 1) sum[0] += *from;
      else add(*reinterpret_cast<const uint4*>(from), sum);
    }
  }
  template <int EACH>
  __device__ __forceinline__ void sum_there(int m, int j, int block, Sum (&sum)[EACH]) const {
    const uint32_t at = shared_address(sum_at(m, j));
    if constexpr (EACH == 1) sum[0] += from_bits<Sum>(word_of(at, block));
    else add(four_of(at, block), sum);
  }
  static __device__ __forceinline__ void add(const uint4& four, Sum (&sum)[4]) {
    sum[0] += from_bits<Sum>(four.x), sum[1] += from_bits<Sum>(four.y);
    sum[2] += from_bits<Sum>(four.z), sum[3] += from_bits<Sum>(four.w);
  }

  template <int EACH>
  __device__ __forceinline__ void put(int m, int j, int active, int first, float x_scale,
                                      const Addend& raw) const {
    const int n = first_row * 16 + j;
    if (j >= width || n >= task.n) return;
    Sum sum[EACH] = {};
    if (cluster_size == 1) sum_here(m, j, active, sum);
    else
#pragma unroll 4
      for (int i = 0; i < cluster_size; i++) sum_there(m, j, i + first, sum);
    float value[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
      value[i] = static_cast<float>(sum[i]) * task.factor * (SCALED ? scales()[j + i] : 1.f);
    const int64_t at = static_cast<int64_t>(m) * task.n + n;
    if constexpr (EACH == 1) {
      put_number(task.y, at, task.y_type, fmaf(value[0], x_scale, number(raw)));
    } else {
      const bool more = task.bias || task.residual;
#pragma unroll
      for (int i = 0; i < EACH; i++)
        value[i] = fmaf(value[i], x_scale, more ? number(addend(m, j + i)) : 0.f);
      if (((reinterpret_cast<uint64_t>(task.y) | task.n * 4) & 15) == 0) {
        put_four(task.y, at, task.y_type, value);
      } else {
#pragma unroll
        for (int i = 0; i < EACH; i++)
          if (n + i < task.n) put_number(task.y, at + i, task.y_type, value[i]);
      }
    }
  }

  // first: of the cluster's blocks that have this part of W
  __device__ __forceinline__ void finish(int first) const {
    if constexpr (SCALED)
      for (int j = thread; j < width; j += threads)
        scales()[j] = number_of(j == thread ? my_scale : scale_of(j), task.scale_type);
    if (many && thread < task.m && !codes_here) rows_scale()[thread] = my_x_scale;
    __syncthreads();
    const int active = min(parts, max(0, task.warps_all - rank * parts));
    const int outputs = task.rows_most * 16 * task.m;
    if (cluster_size > 1) {
#pragma unroll 1
      for (int o = thread; o < outputs; o += threads) {
        const int m = token_of(o), j = row_of(o, m);
        Sum sum[1] = {};
        if (j < width) sum_here(m, j, active, sum), *sum_at(m, j) = sum[0];
      }
      cluster_arrive(), cluster_wait();
    }
    if (!many) {
      if (mine < outputs)
        put<1>(my_m, my_j, active, first, codes_here ? rows_scale()[my_m] : my_x_scale, my_addend);
    } else {
#pragma unroll 1
      for (int o = mine * 4; o < outputs; o += cluster_size * threads * 4) {
        const int m = token_of(o);
        put<4>(m, row_of(o, m), active, first, rows_scale()[m], Addend());
      }
    }
    // nobody leaves while its sums are read
    if (cluster_size > 1) cluster_arrive(), cluster_wait();
  }
};
