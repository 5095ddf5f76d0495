// y[t] = row_weight[t] (x[t] W_e^T + bias_e) for rows t of x that lie sorted by expert, W in the layout
// "fragments".
//
// A block takes up to 8 TILES rows of one expert against 128 rows of its W; every warp has two row-blocks
// (16 rows of W) of its own over all of K. Weights come straight into registers, a chunk of K ahead of the
// sums; x, which all warps need, comes into a pipeline of STAGES chunks in shared memory, from where `ldmatrix`
// loads it as the B operand of mma. So a weight is read and decoded once for all rows of a tile.
#pragma once
#include "stage_x.cuh"

constexpr int STAGES = 3;

template <int BITS, int TILES, class X> struct Shape {
  using U = Unit<BITS, 1, X>;
  static constexpr int ROW_BLOCKS = 2;  // of a warp
  static constexpr int WIDTH = WARPS * ROW_BLOCKS * 16;  // rows of W of a block
  static constexpr int ROWS = 8 * TILES;
  static constexpr int UNITS = 2;  // of a chunk, and in flight while one is multiplied
  static constexpr int BYTES = UNITS * U::BYTES;  // of a row of x in a chunk
  static constexpr int PITCH = BYTES + 16;        // eight rows lie in different banks
  static constexpr int CHUNK = ROWS * PITCH;
  static constexpr int OUT_PITCH = WIDTH + 4;     // words from row to row of what is written
  static constexpr int OUT = ROWS * OUT_PITCH * 4;
  static constexpr int SHARED = STAGES * CHUNK > OUT ? STAGES * CHUNK : OUT;
  static constexpr int BLOCKS = TILES == 4 ? 4 : 3;  // on a multiprocessor
};

// A chunk of x: 32 bytes a thread at a time, zero past the end of K. Rows past the tile's last stay as they
// are: what they hold reaches sums of rows that nobody writes.
template <class S>
__device__ __forceinline__ void copy_chunk(const Task& task, const Tile& tile, int chunk, uint32_t to,
                                           int row_bytes) {
  constexpr int PAIRS = S::BYTES / 32;
  const char* const x = static_cast<const char*>(task.x) + tile.first * task.x_pitch;
#pragma unroll 1
  for (int i = threadIdx.x; i < tile.rows * PAIRS; i += THREADS) {
    const int row = i / PAIRS, column = i % PAIRS * 32;
    copy_pair(x + row * task.x_pitch, chunk * S::BYTES + column, row_bytes,
              to + row * S::PITCH + column);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int BITS, int TILES, class X>
__global__ void __launch_bounds__(THREADS, Shape<BITS, TILES, X>::BLOCKS)
    experts(const __grid_constant__ Task task, int parts) {
  using S = Shape<BITS, TILES, X>;
  using U = typename S::U;
  using P = Product<X>;
  using Sum = typename U::Sum;
  constexpr int RB = S::ROW_BLOCKS, UNITS = S::UNITS;
  extern __shared__ __align__(128) unsigned char memory[];
  const Tile& tile = find_tile(task, blockIdx.x, S::ROWS, parts);  // in shared memory
  if (!tile.rows) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int block0 = tile.slice * (S::WIDTH / 16) + warp * RB;  // of the expert's
  const int own = min(RB, task.blocks - block0);               // row-blocks that there are
  const int tiles = (tile.rows + 7) / 8, chunks = (task.units + UNITS - 1) / UNITS;
  const int row_bytes = task.k * static_cast<int>(sizeof(X));

  uint4 w[RB][UNITS];
  const uint4* next[RB];  // of the next chunk
#pragma unroll
  for (int r = 0; r < RB; r++)
    next[r] = task.codes + lane +
              (static_cast<int64_t>(tile.expert) * task.blocks + block0 + min(r, own - 1)) * task.units * 32;
  int left = own > 0 ? task.units : 0;
  auto ask = [&](int r, int u) {
    w[r][u] = u < left ? load_once(next[r] + u * 32) : make_uint4(0, 0, 0, 0);
  };
  auto step_on = [&] {
    left -= UNITS;
#pragma unroll
    for (int r = 0; r < RB; r++) next[r] += UNITS * 32;
  };
#pragma unroll
  for (int u = 0; u < UNITS; u++)
#pragma unroll
    for (int r = 0; r < RB; r++) ask(r, u);

  const uint32_t pipeline = shared_address(memory);
  auto chunk_at = [&](int chunk) { return pipeline + chunk % STAGES * S::CHUNK; };
#pragma unroll
  for (int c = 0; c < STAGES - 1; c++) {
    if (c < chunks) copy_chunk<S>(task, tile, c, chunk_at(c), row_bytes);
    else asm volatile("cp.async.commit_group;" ::: "memory");
  }

  Sum sums[RB][TILES][4];
#pragma unroll
  for (int i = 0; i < RB * TILES * 4; i++) sums[i / (TILES * 4)][i / 4 % TILES][i % 4] = 0;
  const uint32_t x_lane = lane % 8 * S::PITCH + lane / 8 * 16;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; chunk++) {
    step_on();
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    if constexpr (sizeof(X) == 2) {
      constexpr int PAIRS = S::BYTES / 32;  // each thread reorders what it copied
#pragma unroll 1
      for (int i = threadIdx.x; i < tile.rows * PAIRS; i += THREADS)
        put_odd_first(chunk_at(chunk) + i / PAIRS * S::PITCH + i % PAIRS * 32);
    }
    __syncthreads();  // the chunk is here, and nobody reads the one before it any more
    if (chunk + STAGES - 1 < chunks)
      copy_chunk<S>(task, tile, chunk + STAGES - 1, chunk_at(chunk + STAGES - 1), row_bytes);
    else
      asm volatile("cp.async.commit_group;" ::: "memory");
    const uint32_t x = chunk_at(chunk) + x_lane;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      uint32_t words[RB][4];
#pragma unroll
      for (int r = 0; r < RB; r++) {
        words[r][0] = w[r][u].x, words[r][1] = w[r][u].y;
        words[r][2] = w[r][u].z, words[r][3] = w[r][u].w;
        ask(r, u);
      }
#pragma unroll
      for (int slice = 0; slice < U::BYTES / 64; slice++) {
        uint32_t a[RB][2][4];
#pragma unroll
        for (int r = 0; r < RB; r++) operands<BITS, X>(words[r], slice, a[r]);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
          if (t >= tiles) continue;
          uint32_t b[4];
          load_matrices(x + t * 8 * S::PITCH + u * U::BYTES + slice * 64, b);
#pragma unroll
          for (int r = 0; r < RB; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) P::mma(sums[r][t], a[r][h], b + 2 * h);
        }
      }
    }
  }

  // sums times factors to shared memory, then whole rows to y
  __syncthreads();
  static_assert(S::WIDTH == 128, "a warp writes a row, four numbers a lane");
  float* const out = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int r = 0; r < RB; r++) {
    if (r >= own) continue;
    const int64_t at = (static_cast<int64_t>(tile.expert) * task.blocks + block0 + r) * 16 + lane / 4;
    const float scale[2] = {number_at(task.scale, at, task.scale_type),
                            number_at(task.scale, at + 8, task.scale_type)};
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int c = 0; c < 4; c++)
        out[(t * 8 + lane % 4 * 2 + c % 2) * S::OUT_PITCH + (warp * RB + r) * 16 + lane / 4 + c / 2 * 8] =
            static_cast<float>(sums[r][t][c]) * task.factor * scale[c / 2];
  }
  __syncthreads();
  for (int row = warp; row < tile.rows; row += WARPS) {
    const int t = tile.first + row;
    const float x_scale = task.x_scale ? task.x_scale[t] : 1.f;
    const float by = task.row_weight ? task.row_weight[t] : 1.f;
    const float4 four = *reinterpret_cast<const float4*>(out + row * S::OUT_PITCH + lane * 4);
    write_four(task, tile.expert, t, tile.slice * S::WIDTH + lane * 4, four, x_scale, by);
  }
}
