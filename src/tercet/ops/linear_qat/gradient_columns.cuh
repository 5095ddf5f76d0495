// Matrices turned over, tiles of 128 x 128 bytes through shared memory: codes of the columns of
// grad [M, N] * row [M] as [N, M], and int8 codes as they are.
#pragma once
#include "gradient_rows.cuh"

constexpr int SIDE = 128, TURN_THREADS = 256;

// Where a tile of that number is. Blocks that run at the same time have tiles in bands of 8 rows of
// tiles: what they write next to each other in memory is 1 KiB, and what they read more.
struct TilePlace {
  int row, column;  // first
  __device__ TilePlace(int rows, int columns, int number) {
    constexpr int BAND = 8;
    const int above = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE;
    const int band = number / (BAND * across), within = number % (BAND * across);
    const int height = min(BAND, above - band * BAND);
    row = (band * BAND + within % height) * SIDE;
    column = within / height * SIDE;
  }
};

// A tile [128 columns][32 words of 4 rows]. Threads write the words of 8 columns each, and read 16
// bytes of one: words lie where the column's number above 8 moves them, and neither meets a bank
// twice.
struct TurnedTile {
  uint4 pieces[SIDE * SIDE / 16];
  __device__ void put(int column, int word, uint32_t four) {
    const int group = column / 8, moved = word ^ (group % 8 * 4 + group / 8);
    reinterpret_cast<uint32_t*>(pieces)[column * (SIDE / 4) + moved] = four;
  }
  // 128 bytes of each column to out + column * pitch; there are `rows`, a multiple of 16
  __device__ void write(int8_t* out, int64_t pitch, int columns, int rows) const {
#pragma unroll
    for (int i = threadIdx.x; i < SIDE * 8; i += TURN_THREADS) {
      const int column = i / 8, piece = i % 8, group = column / 8;
      if (column >= columns || piece * 16 >= rows) continue;
      const uint4 v = pieces[column * 8 + (piece ^ group % 8)];
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

// What a thread reads of a tile of grad: 8 columns of 8 rows. The last rows come first, for they were
// read last, and may still be in the L2 cache.
struct ColumnTile {
  int n0, m0, columns, rows, group, eight;  // group of 8 columns, of 8 rows
  bool mine;
  __device__ ColumnTile(int m, int n, int number) {
    const TilePlace place(m, n, number);
    n0 = place.column;
    m0 = (m - 1) / SIDE * SIDE - place.row;
    columns = min(SIDE, n - n0);
    rows = min(SIDE, m - m0);
    group = threadIdx.x % 16;
    eight = threadIdx.x / 16;
    mine = group * 8 < columns && eight * 8 < rows;
  }
};

// Vectors on their way into shared memory: a thread reads what itself has asked for.
template <int TYPE>
struct Arriving {
  static constexpr int PARTS = 8 / Vector<TYPE>::WIDTH;  // vectors that hold 8 columns
  static constexpr int BYTES = 8 * PARTS * TURN_THREADS * 16;
  uint4* const slots;
  // `held_back` is 0, but known only when the slots have been read
  __device__ void ask(const Grad& grad, const ColumnTile& tile, uint32_t held_back) const {
    if (!tile.mine) return;
    const char* const from = static_cast<const char*>(grad.data) +
                             (tile.m0 + tile.eight * 8) * grad.pitch +
                             (tile.n0 + tile.group * 8) * (16 / Vector<TYPE>::WIDTH) + held_back;
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
      for (int i = 0; i < PARTS; i++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         mbarrier::address_of(slots + (r * PARTS + i) * TURN_THREADS + threadIdx.x)),
                     "l"(from + r * grad.pitch + i * 16)
                     : "memory");
  }
  __device__ static void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
  // 4 columns of 8 rows, the first or the second
  __device__ uint32_t take(Vector<TYPE> (&g)[8], int half) const {
    uint32_t words = 0;
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const uint4* const at = slots + (r * PARTS + half * (PARTS - 1)) * TURN_THREADS + threadIdx.x;
      if constexpr (PARTS == 2) {
        g[r].words = *at;
      } else {
        const uint2 four = reinterpret_cast<const uint2*>(at)[half];
        g[r].words = make_uint4(four.x, four.y, 0, 0);
      }
      words |= g[r].words.x;
    }
    return words;
  }
};

// A block's next tile is on its way while it codes one. Random numbers: 8 rows of a column share a
// block of Philox, column n and row m have half m % 8 of block n ceil(M / 8) + m / 8. `none` is 0.
template <int TYPE, bool RANDOM>
__global__ void __launch_bounds__(TURN_THREADS, TYPE == FLOAT32 ? 2 : 3)
    column_codes(const Grad grad, const float* row, const float* scales, const int64_t* seed,
                 int8_t* codes, int tiles, uint32_t none) {
  extern __shared__ uint4 slots[];
  __shared__ TurnedTile turned;
  __shared__ Divisors divisors;
  const Arriving<TYPE> arriving = {slots};
  const uint64_t key = RANDOM ? *seed : 0, blocks = (grad.m + 7) / 8;
  arriving.ask(grad, ColumnTile(grad.m, grad.n, blockIdx.x), 0);
  for (int at = blockIdx.x; at < tiles; at += gridDim.x) {
    const ColumnTile tile(grad.m, grad.n, at);
    const int group = tile.group, eight = tile.eight;
    float by[8];
    if (tile.mine)
#pragma unroll
      for (int r = 0; r < 8; r++) by[r] = __ldg(row + tile.m0 + eight * 8 + r);
    bool plain = true;
    if (threadIdx.x < SIDE) {
      const bool inside = static_cast<int>(threadIdx.x) < tile.columns;
      const Divisor divisor(inside ? __ldg(scales + tile.n0 + threadIdx.x) : 1.f);
      divisors.put(threadIdx.x, divisor);
      plain = divisor.plain();
    }
    arriving.wait();
    // what the block coded before is written, too
    plain = __syncthreads_and(plain);
    const int next = at + gridDim.x;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      Vector<TYPE> g[8];
      // the first half has arrived: its codes are in shared memory
      const uint32_t held_back = arriving.take(g, half) & none;
      if (half && next < tiles) arriving.ask(grad, ColumnTile(grad.m, grad.n, next), held_back);
      if (!tile.mine) continue;
#pragma unroll
      for (int pair = 0; pair < 4; pair += 2) {
        const int column = group * 8 + half * 4 + pair;
        const uint64_t first = (tile.n0 + column) * blocks + tile.m0 / 8 + eight;
        uint4 words[2];
        if constexpr (RANDOM) philox(key, {first, first + blocks}, words);
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const Divisor divisor = divisors[column + e];
          float h[8];
#pragma unroll
          for (int r = 0; r < 8; r++) h[r] = __fmul_rn(g[r][pair + e], by[r]);
          uint32_t code[8];
          if constexpr (RANDOM)
            random_codes(code, h, divisor, plain, words[e]);
          else
            nearest_codes(code, h, divisor, plain);
          turned.put(column + e, eight * 2, four_bytes(code[0], code[1], code[2], code[3]));
          turned.put(column + e, eight * 2 + 1, four_bytes(code[4], code[5], code[6], code[7]));
        }
      }
    }
    __syncthreads();
    turned.write(codes + static_cast<int64_t>(tile.n0) * grad.m + tile.m0, grad.m, tile.columns,
                 tile.rows);
  }
}

// out [C, R] of in [R, C], rows of in at multiples of 8 bytes, R a multiple of 16
__global__ void __launch_bounds__(TURN_THREADS)
    turn_codes(const int8_t* in, int64_t pitch, int8_t* out, int in_rows, int in_columns) {
  __shared__ TurnedTile tile;
  const TilePlace place(in_rows, in_columns, blockIdx.x);
  const int c0 = place.column, r0 = place.row;
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
        // four by four bytes turned over: pairs of rows, then pairs of pairs
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
