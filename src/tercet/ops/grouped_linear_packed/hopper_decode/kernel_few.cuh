// kernel.cuh for experts of few rows: up to `rows` (8 at most) rows of one expert against a run of
// row-blocks (16 rows) of its W. All of their x lies in shared memory, so that warps go over their row-blocks
// by themselves, and the next one's weights are in flight while this one's sums are written.
#pragma once
#include "stage_x.cuh"

constexpr int LEAST_BLOCKS = 4, MOST_BLOCKS = 32;  // row-blocks of a block, if the device chooses

// AHEAD: units that a warp has asked for.
template <int BITS, class X, int AHEAD> struct Few {
  using U = Unit<BITS, 1, X>;
  static constexpr int ROWS = 8;
  static constexpr int OUT_PITCH = 20;  // words from row to row of what a warp writes
  static constexpr int OUT = ROWS * OUT_PITCH * 4;
  // units of a row of x, padded to whole iterations of the loop, and bytes: eight rows lie in different banks
  static __host__ __device__ int padded_units(int units) { return (units + AHEAD - 1) / AHEAD * AHEAD; }
  static __host__ __device__ int pitch(int units) { return padded_units(units) * U::BYTES + 16; }
  static int shared(int rows, int units) { return rows * pitch(units) + WARPS * OUT; }
};

// Prefetches `bytes` of every fourth row-block of all experts to the L2, by blocks that start while the previous
// kernel ends: which experts have rows is not known yet, and the memory has little to do.
__device__ __forceinline__ void ask_ahead(const Task& task, int bytes, int slots) {
  if (blockIdx.x >= slots || threadIdx.x % 32) return;
  const int warp = blockIdx.x * WARPS + threadIdx.x / 32, all = task.experts * task.blocks;
  for (int block = warp * 4; block < all; block += slots * WARPS * 4)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                     task.codes + static_cast<int64_t>(block) * task.units * 32),
                 "r"(bytes)
                 : "memory");
}

// `slots` blocks run at once. Row-blocks of a block, where slice_blocks is 0: so that the tiles that there are
// have their parts in one go.
template <int BITS, class X, int AHEAD>
__global__ void __launch_bounds__(THREADS, 5)
    experts_few(const __grid_constant__ Task task, int rows, int slice_blocks, int slots, int ahead) {
  using F = Few<BITS, X, AHEAD>;
  using U = typename F::U;
  using P = Product<X>;
  using Sum = typename U::Sum;
  extern __shared__ __align__(128) unsigned char memory[];
  if (ahead) ask_ahead(task, ahead, slots);
  if (!slice_blocks) {
    const int parts = max(1, slots / max(1, count_tiles(task, rows)));
    slice_blocks = min(max((task.blocks + parts - 1) / parts, LEAST_BLOCKS), MOST_BLOCKS);
  }
  const int parts = (task.blocks + slice_blocks - 1) / slice_blocks;
  const Tile& tile = find_tile(task, blockIdx.x, rows, parts);  // in shared memory
  if (!tile.rows) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int pitch = F::pitch(task.units), row_bytes = task.k * static_cast<int>(sizeof(X));
  const int last = min(task.blocks, (tile.slice + 1) * slice_blocks);
  const int expert_block = tile.expert * task.blocks;

  // x is asked for first: behind the first weights of all blocks it would wait for 2 us
  const uint32_t x_here = shared_address(memory);
  const int pairs = (pitch - 16) / 32;
#pragma unroll 1
  for (int row = 0; row < tile.rows; row++)
#pragma unroll 1
    for (int i = threadIdx.x; i < pairs; i += THREADS)
      copy_pair(static_cast<const char*>(task.x) + (tile.first + row) * task.x_pitch, i * 32, row_bytes,
                x_here + row * pitch + i * 32);

  uint4 w[AHEAD];
  int asked = tile.slice * slice_blocks + warp, asked_unit = 0;
  const uint4* next = task.codes + static_cast<int64_t>(expert_block + asked) * task.units * 32 + lane;
  // the same units in each iteration: a row-block ends with the iteration that its last unit is in
  auto ask = [&](int u) {
    w[u] = asked < last && asked_unit + u < task.units ? load_once(next + u * 32)
                                                       : make_uint4(0, 0, 0, 0);
  };
  auto step_on = [&] {
    asked_unit += AHEAD, next += AHEAD * 32;
    if (asked_unit >= task.units) {
      next += (WARPS * task.units - asked_unit) * 32;
      asked_unit = 0, asked += WARPS;
    }
  };
#pragma unroll
  for (int u = 0; u < AHEAD; u++) ask(u);
  copies_arrived();
  if constexpr (sizeof(X) == 2)  // each thread reorders what it copied
#pragma unroll 1
    for (int row = 0; row < tile.rows; row++)
#pragma unroll 1
      for (int i = threadIdx.x; i < pairs; i += THREADS) put_odd_first(x_here + row * pitch + i * 32);
  __syncthreads();

  // rows of x past the last are the last again: their columns of the product go nowhere
  const uint32_t x_lane = x_here + min(lane % 8, tile.rows - 1) * pitch + lane / 8 * 16;
  // what this lane writes of every row-block: four numbers of a row of y
  const int row = lane / 4, t = tile.first + min(row, tile.rows - 1);
  const float x_scale = task.x_scale ? task.x_scale[t] : 1.f;
  const float by = task.row_weight ? task.row_weight[t] : 1.f;
#pragma unroll 1
  for (int block = tile.slice * slice_blocks + warp; block < last; block += WARPS) {
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      scale[i] = number_at(task.scale, static_cast<int64_t>(expert_block + block) * 16 + lane / 4 + 8 * i,
                           task.scale_type);
    Sum sums[2][4];  // two, so that a product need not wait for the one before it
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i / 4][i % 4] = 0;
#pragma unroll 1
    for (int from = 0; from < task.units; from += AHEAD) {
      step_on();
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};
        ask(u);
#pragma unroll
        for (int slice = 0; slice < U::BYTES / 64; slice++) {
          uint32_t b[4];
          load_matrices(x_lane + (from + u) * U::BYTES + slice * 64, b);
          uint32_t a[2][4];
          operands<BITS, X>(words, slice, a);
#pragma unroll
          for (int h = 0; h < 2; h++) P::mma(sums[h], a[h], b + 2 * h);
        }
      }
    }
    float* const out = reinterpret_cast<float*>(memory + rows * pitch + warp * F::OUT);
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 4; c++)
      out[(lane % 4 * 2 + c % 2) * F::OUT_PITCH + lane / 4 + c / 2 * 8] =
          static_cast<float>(sums[0][c] + sums[1][c]) * task.factor * scale[c / 2];
    __syncwarp();
    if (row < tile.rows)
      write_four(task, tile.expert, tile.first + row, block * 16 + lane % 4 * 4,
                 *reinterpret_cast<const float4*>(out + row * F::OUT_PITCH + lane % 4 * 4), x_scale, by);
  }
}
