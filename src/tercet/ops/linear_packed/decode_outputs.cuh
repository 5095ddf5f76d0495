// The end of a product: the sums that warps have left in shared memory, four neighbours in y at a time,
// become y. Most of its time is instructions, one set for each output, so four outputs share one.
#pragma once
#include "decode_task.cuh"

// The outputs of a cluster: Sum is what lies in slots; SCALED: each row of W has one scale, applied here.
//
// Sums of row-block j / 16 over the i-th part of K are at slot(j / 16, i)[m * SLOT_PITCH + j % 16].
template <class Sum, bool SCALED> struct Outputs {
  static constexpr int EACH = 4, PITCH = Places::SLOT_PITCH;
  struct Addend {
    uint32_t bias[EACH], residual[EACH];
  };
  const Task& task;
  unsigned char* const memory;
  const int rank, ranks, thread, threads, parts;
  const int first_row, rows;  // row-blocks
  const int width, count;     // rows of W; outputs over EACH
  const int slot_words, slot_step;
  const int mine, my_m, my_j;  // this thread's first output: row of x, place among the rows of W
  uint32_t my_scale = 0;
  float my_x_scale = 1.f;
  Addend my_addend;

  __device__ Outputs(const Task& task, unsigned char* memory, int first_row, int rows)
      : task(task), memory(memory), rank(blockIdx.x), ranks(gridDim.x), thread(thread_of_block()),
        threads(threads_of_block()), parts(blockDim.y), first_row(first_row), rows(rows),
        width(rows * 16), count(task.rows_most * (16 / EACH) * task.m), slot_words(task.m * PITCH),
        slot_step(parts * slot_words), mine(rank * threads + thread), my_m(token_of(mine)),
        my_j(place_of(mine, my_m)) {}

  __device__ __forceinline__ int token_of(int o) const {
    return static_cast<int>((o * EACH / 16u * task.rows_inverse) >> 23);
  }
  __device__ __forceinline__ int place_of(int o, int m) const {
    return o * EACH - m * task.rows_most * 16;
  }
  __device__ __forceinline__ Sum* slot(int row, int part) const {
    return reinterpret_cast<Sum*>(memory + task.places.slots) + row * slot_step + part * slot_words;
  }
  __device__ __forceinline__ float* rows_scale() const {
    return reinterpret_cast<float*>(memory + Places::ROWS_SCALE);
  }
  __device__ __forceinline__ uint32_t scale_of(int j) const {
    return bits_at(task.scale, first_row * 16 + j, task.scale_type);
  }
  __device__ __forceinline__ Addend addend(int m, int j) const {
    Addend raw{};
    const int n = first_row * 16 + j;
    if (m >= task.m || j >= width || !(task.bias || task.residual)) return raw;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (n + i >= task.n) break;
      if (task.bias) raw.bias[i] = bits_at(task.bias, n + i, task.bias_type);
      if (task.residual)
        raw.residual[i] = bits_at(task.residual, m * task.residual_pitch + n + i, task.residual_type);
    }
    return raw;
  }

  // what is needed besides the sums is loaded early: of the weights, and of the kernel ahead
  __device__ __forceinline__ void ask_scale() {
    if (SCALED && thread < width) my_scale = scale_of(thread);
  }
  __device__ __forceinline__ void ask_rest() {
    if (thread < task.m && task.x_scale) my_x_scale = task.x_scale[thread];
    my_addend = addend(my_m, my_j);
  }

  // the sum over the block's parts of K of four neighbours
  __device__ __forceinline__ void sum_here(int m, int j, int active, Sum (&sum)[EACH]) const {
    const Sum* from = slot(j / 16, 0) + m * PITCH + j % 16;
#pragma unroll
    for (int i = 0; i < EACH; i++) sum[i] = 0;
#pragma unroll 4
    for (int part = 0; part < active; part++) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + part * slot_words);
      add(four, sum);
    }
  }
  static __device__ __forceinline__ void add(const uint4& four, Sum (&sum)[EACH]) {
    sum[0] += from_bits<Sum>(four.x), sum[1] += from_bits<Sum>(four.y);
    sum[2] += from_bits<Sum>(four.z), sum[3] += from_bits<Sum>(four.w);
  }

  // x_scale_here: rows_scale is there already; first: of the cluster's blocks that have this part of W
  __device__ __forceinline__ void finish(bool x_scale_here, int first) const {
    float* const scales = reinterpret_cast<float*>(memory + Places::SCALES);
    if constexpr (SCALED)
      for (int j = thread; j < width; j += threads)
        scales[j] = number_of(j == thread ? my_scale : scale_of(j), task.scale_type);
    if (thread < task.m && !x_scale_here) rows_scale()[thread] = my_x_scale;
    __syncthreads();
    const int active = min(parts, max(0, task.warps_all - rank * parts));
    if (ranks > 1) {
#pragma unroll 1
      for (int o = thread; o < count; o += threads) {
        const int m = token_of(o), j = place_of(o, m);
        if (j >= width) continue;
        Sum sum[EACH];
        sum_here(m, j, active, sum);
#pragma unroll
        for (int i = 0; i < EACH; i++) slot(j / 16, 0)[m * PITCH + j % 16 + i] = sum[i];
      }
      cluster_arrive(), cluster_wait();
    }
    const bool whole = ((reinterpret_cast<uint64_t>(task.y) | task.n * 4) & 15) == 0;
#pragma unroll 1
    for (int o = mine; o < count; o += ranks * threads) {
      const bool early = o == mine;
      const int m = early ? my_m : token_of(o), j = place_of(o, m), n = first_row * 16 + j;
      if (j >= width || n >= task.n) continue;
      Sum sum[EACH] = {};
      if (ranks == 1) sum_here(m, j, active, sum);
      else
#pragma unroll 4
        for (int i = 0; i < ranks; i++)
          add(four_of(shared_address(slot(j / 16, 0) + m * PITCH + j % 16), i + first), sum);
      float value[EACH] = {};
      if (task.bias || task.residual) {
        const Addend raw = early ? my_addend : addend(m, j);
#pragma unroll
        for (int i = 0; i < EACH; i++)
          value[i] = number_of(raw.bias[i], task.bias_type) + number_of(raw.residual[i], task.residual_type);
      }
      const float x_scale = rows_scale()[m];
#pragma unroll
      for (int i = 0; i < EACH; i++)
        value[i] = fmaf(static_cast<float>(sum[i]) * task.factor * (SCALED ? scales[j + i] : 1.f), x_scale, value[i]);
      const int64_t at = static_cast<int64_t>(m) * task.n + n;
      if (whole) {
        put_four(task.y, at, task.y_type, value);
      } else {
#pragma unroll
        for (int i = 0; i < EACH; i++)
          if (n + i < task.n) put_number(task.y, at + i, task.y_type, value[i]);
      }
    }
    // nobody leaves while its sums are read
    if (ranks > 1) cluster_arrive(), cluster_wait();
  }
};
