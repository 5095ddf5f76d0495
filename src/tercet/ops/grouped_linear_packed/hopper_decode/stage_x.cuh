// Which rows of x and of W a block takes, and how x comes to shared memory.
#pragma once
#include "packed_weight/hopper/mma_unit.cuh"
#include "task.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;

// Whatever the offsets hold, rows are within 0 .. T - 1.
__device__ __forceinline__ int2 rows_of(const Task& task, int expert) {
  return {max(task.offsets[expert], 0), min(task.offsets[expert + 1], task.count)};
}

// How many tiles of at most so many rows these are.
__device__ __forceinline__ int tiles_of(int2 rows, int most_rows) {
  return max(rows.y - rows.x + most_rows - 1, 0) / most_rows;
}

// Tiles that there are. By all threads of the block; waits for the kernel that wrote the offsets.
__device__ inline int count_tiles(const Task& task, int most_rows) {
  __shared__ int counts[WARPS];
  launch_dependents();
  wait_for_previous_kernel();
  int tiles = 0;
  for (int expert = threadIdx.x; expert < task.experts; expert += THREADS)
    tiles += tiles_of(rows_of(task, expert), most_rows);
  tiles = __reduce_add_sync(~0u, tiles);
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = tiles;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) all += counts[w];
  return all;
}

// The tile of that number; no rows where there is none: experts have their tiles one after the other, and
// those with the same weights are neighbours, so that only one of them waits for the memory. By all
// threads of the block, after the kernel that wrote the offsets.
__device__ inline const Tile& find_tile(const Task& task, int at, int most_rows, int parts) {
  __shared__ int totals[WARPS];
  __shared__ Tile found;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  if (thread == 0) found.rows = 0;
  launch_dependents();
  wait_for_previous_kernel();
  int before = 0;
  for (int base = 0; base < task.experts; base += THREADS) {
    const int expert = base + thread;
    const int2 rows = expert < task.experts ? rows_of(task, expert) : make_int2(0, 0);
    const int tiles = tiles_of(rows, most_rows);
    int through = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += other;
    }
    if (lane == 31) totals[warp] = through;
    __syncthreads();
    for (int w = 0; w < warp; w++) through += totals[w];
    through += before;
    const int inside = at - (through - tiles) * parts;
    if (inside >= 0 && inside < tiles * parts) {
      const int row = rows.x + inside % tiles * most_rows;
      found = {expert, row, min(most_rows, rows.y - row), inside / tiles};
    }
    for (int w = 0; w < WARPS; w++) before += totals[w];
    __syncthreads();
    if (at < before * parts) break;
  }
  return found;
}

// The A operands for 64 bytes of rows of x, part `part` of a unit: of two steps of 32 columns, or of
// the two halves of one.
template <int BITS, class X>
__device__ __forceinline__ void operands(const uint32_t (&words)[4], int slice, uint32_t (&a)[2][4]) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if constexpr (Product<X>::FULL) a[h][i] = signed_bytes<BITS>(words[i], slice * 2 + h);
      else a[h][i] = two_floats<BITS, X>(words[2 * h + i % 2], slice, i < 2);
}

// 16-bit x: 32 bytes in shared memory become, of 16 columns, the odd ones first, as Unit wants them.
__device__ __forceinline__ void put_odd_first(uint32_t here) {
  uint32_t w[8];
#pragma unroll
  for (int half = 0; half < 2; half++)
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[half * 4]), "=r"(w[half * 4 + 1]), "=r"(w[half * 4 + 2]), "=r"(w[half * 4 + 3])
                 : "r"(here + half * 16)
                 : "memory");
#pragma unroll
  for (int even = 0; even < 2; even++) {
    uint32_t v[4];
#pragma unroll
    for (int p = 0; p < 4; p++) v[p] = __byte_perm(w[2 * p], w[2 * p + 1], even ? 0x5410 : 0x7632);
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(here + even * 16), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
  }
}

// 32 bytes of a row of x from column byte `at` on, zero past the row's end
__device__ __forceinline__ void copy_pair(const char* row, int at, int row_bytes, uint32_t to) {
#pragma unroll
  for (int half = 0; half < 32; half += 16) {
    const int bytes = max(0, min(16, row_bytes - at - half));
    copy_async(to + half, bytes ? row + at + half : row, bytes);
  }
}

// Numbers n .. n + 3 of row t of y; n is a multiple of 4.
__device__ __forceinline__ void write_four(const Task& task, int expert, int t, int n, float4 v,
                                           float x_scale, float by) {
  float value[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const bool biased = task.bias && n + i < task.n;
    const float bias =
        biased ? number_at(task.bias, static_cast<int64_t>(expert) * task.n + n + i, task.bias_type) : 0.f;
    value[i] = (value[i] * x_scale + bias) * by;
  }
  const int64_t at = static_cast<int64_t>(t) * task.n + n;
  if (task.y_type && task.n % 4 == 0) {
    if (n >= task.n) return;
    uint2 four;
    if (task.y_type == 1) {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(four.x) : "f"(value[1]), "f"(value[0]));
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(four.y) : "f"(value[3]), "f"(value[2]));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(four.x) : "f"(value[1]), "f"(value[0]));
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(four.y) : "f"(value[3]), "f"(value[2]));
    }
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(task.y) + at) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (n + i < task.n) put_number(task.y, at + i, task.y_type, value[i]);
}
