// Matrices turned over, tiles of 128 x 128 bytes through shared memory: codes of the columns of
// grad [M, N] * row [M] as [N, M], and int8 codes as they are.
#pragma once
#include "gradient_rows.cuh"

constexpr int SIDE = 128, TURN_THREADS = 256;

// A tile [128 columns][32 words of 4 rows]. Threads write the words of 8 columns each, and read 16
// bytes of one: words lie where the column's number above 8 moves them, and neither meets a bank
// twice.
struct TurnedTile {
  uint4 pieces[SIDE * SIDE / 16];
  __device__ void put(int column, int word, uint32_t four) {
    const int group = column / 8, moved = word ^ (group % 8 * 4 + group / 8 * 2);
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
          group / 8 ? make_uint4(v.z, v.w, v.x, v.y) : v;
    }
  }
};

// The last rows first, for they were read last, and may still be in the L2 cache.
template <int TYPE, bool RANDOM>
__global__ void __launch_bounds__(TURN_THREADS, RANDOM || TYPE == FLOAT32 ? 2 : 3)
    column_codes(const Grad grad, const float* row, const float* scales, const int64_t* seed,
                 int8_t* codes) {
  __shared__ TurnedTile tile;
  const int n0 = blockIdx.x * SIDE, m0 = (gridDim.y - 1 - blockIdx.y) * SIDE;
  const int columns = min(SIDE, grad.n - n0), rows = min(SIDE, grad.m - m0);
  const int group = threadIdx.x % 16, n = n0 + group * 8;  // 8 columns of this thread
  const uint64_t key = RANDOM ? *seed : 0;
  if (group * 8 < columns) {
    constexpr int QUADS = SIDE / 4 / (TURN_THREADS / 16);
    Vector<TYPE> g[QUADS][4];
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int m = m0 + (threadIdx.x / 16 + q * (TURN_THREADS / 16)) * 4 + r;
        if (m < grad.m)
          g[q][r].load(static_cast<const char*>(grad.data) + m * grad.pitch +
                       static_cast<int64_t>(n) * (Vector<TYPE>::BYTES / 8));
        else
          g[q][r].clear();
      }
    const float4 low = __ldg(reinterpret_cast<const float4*>(scales + n));
    const float4 high = __ldg(reinterpret_cast<const float4*>(scales + n) + 1);
    const float scale[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float by[QUADS][4];
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int m = m0 + (threadIdx.x / 16 + q * (TURN_THREADS / 16)) * 4 + r;
        by[q][r] = m < grad.m ? __ldg(row + m) : 0.f;
      }
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const Divisor divisor(scale[e]);
#pragma unroll
      for (int q = 0; q < QUADS; q++) {
        const int quad = threadIdx.x / 16 + q * (TURN_THREADS / 16);
        float ratio[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const float h = __fmul_rn(g[q][r][e], by[q][r]);
          ratio[r] = divisor.plain ? divisor.plainly(h) : divisor.ratio(h);
        }
        uint32_t code[4];
        if constexpr (RANDOM) {
          const int64_t blocks = (grad.m + 3) / 4;
          const uint4 words = philox(key, (n + e) * blocks + m0 / 4 + quad);
          code[0] = at_random(ratio[0], words.x);
          code[1] = at_random(ratio[1], words.y);
          code[2] = at_random(ratio[2], words.z);
          code[3] = at_random(ratio[3], words.w);
        } else {
#pragma unroll
          for (int r = 0; r < 4; r++) code[r] = nearest(ratio[r]);
        }
        tile.put(group * 8 + e, quad, four_bytes(code[0], code[1], code[2], code[3]));
      }
    }
  }
  __syncthreads();
  tile.write(codes + static_cast<int64_t>(n0) * grad.m + m0, grad.m, columns, rows);
}

// out [C, R] of in [R, C], rows of in at multiples of 8 bytes, R a multiple of 16
__global__ void __launch_bounds__(TURN_THREADS)
    turn_codes(const int8_t* in, int64_t pitch, int8_t* out, int in_rows, int in_columns) {
  __shared__ TurnedTile tile;
  const int c0 = blockIdx.x * SIDE, r0 = blockIdx.y * SIDE;
  const int columns = min(SIDE, in_columns - c0), rows = min(SIDE, in_rows - r0);
  const int group = threadIdx.x % 16;
  constexpr int QUADS = SIDE / 4 / (TURN_THREADS / 16);
  if (group * 8 < columns) {
    uint2 four[QUADS][4];
#pragma unroll
    for (int q = 0; q < QUADS; q++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int at = (threadIdx.x / 16 + q * (TURN_THREADS / 16)) * 4 + r;
        four[q][r] = make_uint2(0, 0);
        if (at < rows)
          four[q][r] = __ldg(reinterpret_cast<const uint2*>(in + (r0 + at) * pitch + c0 + group * 8));
      }
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
      const int quad = threadIdx.x / 16 + q * (TURN_THREADS / 16);
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
