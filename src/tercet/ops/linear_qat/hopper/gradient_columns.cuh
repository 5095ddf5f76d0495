// Matrices transposed, tiles of 128 x 128 bytes through shared memory: codes of the columns of
// grad [M, N] * row [M] as [N, M], and int8 codes as they are.
#pragma once
#include "gradient_rows.cuh"

constexpr int SIDE = 128, TRANSPOSE_THREADS = 256;

// Which tile a block transposes. Blocks that run at the same time have tiles in groups of 8 rows of
// tiles: what they write next to each other in memory is 1 KiB, and what they read more.
struct TilePlace {
  int row, column;  // first
  __device__ TilePlace(int rows, int columns) {
    constexpr int SWIZZLE = 8;
    const int above = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE;
    const int swizzle_group = blockIdx.x / (SWIZZLE * across), within = blockIdx.x % (SWIZZLE * across);
    const int height = min(SWIZZLE, above - swizzle_group * SWIZZLE);
    row = (swizzle_group * SWIZZLE + within % height) * SIDE;
    column = within / height * SIDE;
  }
};

// A tile [128 columns][32 words of 4 rows]. Threads write the words of 8 columns each, and read 16
// bytes of one: words are permuted by column / 8, so that neither access has bank conflicts.
struct TransposedTile {
  uint4 chunks[SIDE * SIDE / 16];
  __device__ void put(int column, int word, uint32_t four) {
    const int group = column / 8, moved = word ^ (group % 8 * 4 + group / 8);
    reinterpret_cast<uint32_t*>(chunks)[column * (SIDE / 4) + moved] = four;
  }
  // 128 bytes of each column to out + column * pitch; there are `rows`, a multiple of 16
  __device__ void write(int8_t* out, int64_t pitch, int columns, int rows) const {
#pragma unroll
    for (int i = threadIdx.x; i < SIDE * 8; i += TRANSPOSE_THREADS) {
      const int column = i / 8, piece = i % 8, group = column / 8;
      if (column >= columns || piece * 16 >= rows) continue;
      const uint4 v = chunks[column * 8 + (piece ^ group % 8)];
      *reinterpret_cast<uint4*>(out + column * pitch + piece * 16) =
          group / 8 ? make_uint4(v.y, v.x, v.w, v.z) : v;
    }
  }
};

// What the columns of a tile are divided by.
struct Divisors {
  float minus[SIDE], inverse[SIDE], power[SIDE];
  __device__ void put(int at, const Divisor& divisor) {
    minus[at] = divisor.minus;
    inverse[at] = divisor.inverse;
    power[at] = divisor.power;
  }
  __device__ Divisor operator[](int at) const { return {minus[at], inverse[at], power[at]}; }
};

// The last rows first, for they were read last, and may still be in the L2 cache. Random numbers: 8
// rows of a column share a block of Philox, column n and row m have half m % 8 of block
// n ceil(M / 8) + m / 8.
template <int TYPE, bool RANDOM>
__global__ void __launch_bounds__(TRANSPOSE_THREADS, TYPE == FLOAT32 ? 2 : 3)
    column_codes(const Grad grad, const float* row, const float* scales, const int64_t* seed,
                 int8_t* codes) {
  constexpr int PARTS = 8 / Vector<TYPE>::WIDTH;  // vectors that hold 8 columns
  __shared__ TransposedTile tile;
  __shared__ Divisors divisors;
  const TilePlace coordinates(grad.m, grad.n);
  const int n0 = coordinates.column, m0 = (grad.m - 1) / SIDE * SIDE - coordinates.row;
  const int columns = min(SIDE, grad.n - n0), rows = min(SIDE, grad.m - m0);
  const int group = threadIdx.x % 16, eight = threadIdx.x / 16;  // of columns, of rows
  const bool mine = group * 8 < columns && eight * 8 < rows;
  Vector<TYPE> g[8][PARTS];
  float by[8];
  if (mine) {
    const char* const from = static_cast<const char*>(grad.data) +
                             (m0 + eight * 8) * grad.pitch + (n0 + group * 8) * (16 / Vector<TYPE>::WIDTH);
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
      for (int i = 0; i < PARTS; i++)
        g[r][i].words = __ldg(reinterpret_cast<const uint4*>(from + r * grad.pitch) + i);
#pragma unroll
    for (int r = 0; r < 8; r++) by[r] = __ldg(row + m0 + eight * 8 + r);
  }
  bool plain = true;
  if (threadIdx.x < SIDE) {
    const Divisor divisor(static_cast<int>(threadIdx.x) < columns ? __ldg(scales + n0 + threadIdx.x)
                                                                  : 1.f);
    divisors.put(threadIdx.x, divisor);
    plain = divisor.plain();
  }
  plain = __syncthreads_and(plain);
  if (mine) {
    const uint64_t key = RANDOM ? *seed : 0;
    const uint64_t blocks = (grad.m + 7) / 8;
#pragma unroll
    for (int pair = 0; pair < 8; pair += 2) {
      const uint64_t first = (n0 + group * 8 + pair) * blocks + m0 / 8 + eight;
      uint4 words[2];
      if constexpr (RANDOM) philox(key, {first, first + blocks}, words);
#pragma unroll
      for (int e = pair; e < pair + 2; e++) {
        const Divisor divisor = divisors[group * 8 + e];
        float h[8];
#pragma unroll
        for (int r = 0; r < 8; r++)
          h[r] = __fmul_rn(g[r][e / Vector<TYPE>::WIDTH][e % Vector<TYPE>::WIDTH], by[r]);
        uint32_t code[8];
        if constexpr (RANDOM)
          random_codes(code, h, divisor, plain, words[e - pair]);
        else
          nearest_codes(code, h, divisor, plain);
        tile.put(group * 8 + e, eight * 2, four_bytes(code[0], code[1], code[2], code[3]));
        tile.put(group * 8 + e, eight * 2 + 1, four_bytes(code[4], code[5], code[6], code[7]));
      }
    }
  }
  __syncthreads();
  tile.write(codes + static_cast<int64_t>(n0) * grad.m + m0, grad.m, columns, rows);
}

// out [C, R] of in [R, C], rows of in at multiples of 8 bytes, R a multiple of 16
__global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_codes(const int8_t* in, int64_t pitch, int8_t* out, int in_rows, int in_columns) {
  __shared__ TransposedTile tile;
  const TilePlace coordinates(in_rows, in_columns);
  const int c0 = coordinates.column, r0 = coordinates.row;
  const int columns = min(SIDE, in_columns - c0), rows = min(SIDE, in_rows - r0);
  const int group = threadIdx.x % 16, eight = threadIdx.x / 16;
  if (group * 8 < columns && eight * 8 < rows) {
    const int8_t* const from = in + (r0 + eight * 8) * pitch + c0 + group * 8;
    uint2 four[2][4];
#pragma unroll
    for (int r = 0; r < 8; r++)
      four[r / 4][r % 4] = __ldg(reinterpret_cast<const uint2*>(from + r * pitch));
#pragma unroll
    for (int q = 0; q < 2; q++) {
      const int quad = eight * 2 + q;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) r[i] = half ? four[q][i].y : four[q][i].x;
        // four by four bytes transposed: pairs of rows, then pairs of pairs
        const uint32_t low01 = __byte_perm(r[0], r[1], 0x5140);
        const uint32_t low23 = __byte_perm(r[2], r[3], 0x5140);
        const uint32_t high01 = __byte_perm(r[0], r[1], 0x7362);
        const uint32_t high23 = __byte_perm(r[2], r[3], 0x7362);
        const int column = group * 8 + half * 4;
        tile.put(column, quad, __byte_perm(low01, low23, 0x5410));
        tile.put(column + 1, quad, __byte_perm(low01, low23, 0x7632));
        tile.put(column + 2, quad, __byte_perm(high01, high23, 0x5410));
        tile.put(column + 3, quad, __byte_perm(high01, high23, 0x7632));
      }
    }
  }
  __syncthreads();
  tile.write(out + static_cast<int64_t>(c0) * in_rows + r0, in_rows, columns, rows);
}
