// Codes of the rows of grad [M, N] * column [N], and on the way the largest |grad * row [M]| of each
// column: one pass over grad. Blocks walk over rows, which the copy engine brings.
#pragma once
#include "codes_of.cuh"
#include "row_stream.cuh"

constexpr int MOST_WARPS = 16;  // columns' numbers lie in registers: 128 a thread

struct Grad {
  const void* data;
  int64_t pitch;  // bytes from row to row, a multiple of 16
  int m, n;       // n is a multiple of 8
};

// First in each kernel here: all that kernels before wrote is there, and the next may start, to wait
// in turn.
__device__ inline void wait_for_kernels_before() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

// VECTORS of 16 bytes a lane. `tops` [blocks, N] takes the largest of each column in this block's
// rows; null where nobody asks. Where registers allow, two rows at a time: what a row waits for, its
// maximum over all warps, is waited for once.
template <int TYPE, int VECTORS>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1)
    row_codes(const Grad grad, const float* column, int one_column, const float* row, int8_t* codes,
              float* scales, float* tops, int stages) {
  using One = Vector<TYPE>;
  constexpr int WIDTH = One::WIDTH, ROWS = VECTORS * WIDTH <= 16 ? 2 : 1;
  __shared__ int maxima[2][ROWS][row_stream::MAX_WARPS];
  __shared__ uint64_t barriers[row_stream::MAX_WARPS * row_stream::MAX_STAGES];
  extern __shared__ uint4 slots[];
  wait_for_kernels_before();
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32;
  for (int i = thread; i < row_stream::MAX_WARPS; i += threads)
#pragma unroll
    for (int r = 0; r < 2 * ROWS; r++) maxima[r / ROWS][r % ROWS][i] = 0;
  row_stream::WarpShare<VECTORS> share(grad.data, grad.pitch, grad.m, grad.n / WIDTH, stages, slots,
                                       barriers);
  // of the lane's columns: what they are scaled with, and the largest so far
  float by[VECTORS][WIDTH], top[VECTORS][WIDTH];
#pragma unroll
  for (int i = 0; i < VECTORS; i++)
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
      const int n = share.unit(i) * WIDTH + e;
      by[i][e] = share.inside(i) ? __ldg(column + (one_column ? 0 : n)) : 0.f;
      top[i][e] = 0.f;
    }
  __syncthreads();
  const int step = gridDim.x;
  const auto factor = [&](int m) { return tops && m < grad.m ? __ldg(row + m) : 0.f; };
  float row_next[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) row_next[r] = factor(blockIdx.x + r * step);
  int turn = 0;
  for (int m = blockIdx.x; m < grad.m; m += ROWS * step, turn ^= 1) {
    One now[ROWS][VECTORS];
    float row_now[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      uint4 held[VECTORS] = {};
      const bool there = m + r * step < grad.m;
      if (there) share.take(held);
#pragma unroll
      for (int i = 0; i < VECTORS; i++) now[r][i].words = held[i];
      if (there) share.taken();
      row_now[r] = row_next[r];
      row_next[r] = factor(m + (ROWS + r) * step);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float most = 0.f;
#pragma unroll
      for (int i = 0; i < VECTORS; i++)
#pragma unroll
        for (int e = 0; e < WIDTH; e++) most = larger(most, __fmul_rn(now[r][i][e], by[i][e]));
      const int of_warp = __reduce_max_sync(~0u, __float_as_int(most));
      if (lane == 0) maxima[turn][r][thread / 32] = of_warp;
    }
    // between a warp's maximum and all warps': what needs neither
    if (tops)
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
#pragma unroll
          for (int e = 0; e < WIDTH; e++)
            top[i][e] = larger(top[i][e], __fmul_rn(now[r][i][e], row_now[r]));
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int at = m + r * step;
      if (at >= grad.m) break;
      const float absmax = __int_as_float(__reduce_max_sync(~0u, maxima[turn][r][lane]));
      const float scale = __fdiv_rn(absmax, 127.f);
      if (thread == 0) scales[at] = scale;
      const Divisor divisor(scale);
      const bool plain = divisor.plain();
      int8_t* const out = codes + static_cast<int64_t>(at) * grad.n;
#pragma unroll
      for (int i = 0; i < VECTORS; i++) {
        if (!share.inside(i)) continue;
        float h[WIDTH];
#pragma unroll
        for (int e = 0; e < WIDTH; e++) h[e] = __fmul_rn(now[r][i][e], by[i][e]);
        uint32_t code[WIDTH];
        nearest_codes(code, h, divisor, plain);
        uint32_t* const to = reinterpret_cast<uint32_t*>(out) + share.unit(i) * (WIDTH / 4);
        const uint32_t first = four_bytes(code[0], code[1], code[2], code[3]);
        if constexpr (WIDTH == 4)
          *to = first;
        else
          *reinterpret_cast<uint2*>(to) =
              make_uint2(first, four_bytes(code[4], code[5], code[6], code[7]));
      }
    }
  }
  if (!tops) return;
  float* const mine = tops + static_cast<int64_t>(blockIdx.x) * grad.n;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    if (!share.inside(i)) continue;
#pragma unroll
    for (int part = 0; part < WIDTH / 4; part++) {
      const float* four = top[i] + part * 4;
      reinterpret_cast<float4*>(mine)[share.unit(i) * (WIDTH / 4) + part] =
          make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

// scales [N] of the columns from tops [parts, N]: 32 columns a block, a part of the parts each of its
// warps
constexpr int SCALE_WARPS = 8;
__global__ void column_scales(const float* tops, int parts, int n, float* scales) {
  __shared__ float found[SCALE_WARPS][32];
  wait_for_kernels_before();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = blockIdx.x * 32 + lane;
  float top = 0.f;
  if (at < n)
#pragma unroll 8
    for (int p = warp; p < parts; p += SCALE_WARPS)
      top = larger(top, __ldg(tops + static_cast<int64_t>(p) * n + at));
  found[warp][lane] = top;
  __syncthreads();
  if (warp || at >= n) return;
#pragma unroll
  for (int w = 1; w < SCALE_WARPS; w++) top = larger(top, found[w][lane]);
  scales[at] = __fdiv_rn(top, 127.f);
}
