// Codes of the rows of grad [M, N] * column [N], and on the way the largest |grad * row [M]| of each
// column: one pass over grad. Blocks iterate over rows, which TMA loads.
#pragma once
#include "quantize.cuh"
#include "kernel/device/row_stream.cuh"

constexpr int MOST_WARPS = 16;  // columns' numbers lie in registers: 128 a thread

struct Grad {
  const void* data;
  int64_t pitch;  // bytes from row to row, a multiple of 16
  int m, n;       // n is a multiple of 8
};

// VECTORS of 16 bytes a lane. `tops` [blocks, N] takes the largest of each column in this block's
// rows; null where nobody asks.
template <int TYPE, int VECTORS>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1)
    row_codes(const Grad grad, const float* column, int one_column, const float* row, int8_t* codes,
              float* scales, float* tops, int stages) {
  using One = Vector<TYPE>;
  constexpr int WIDTH = One::WIDTH;
  __shared__ int maxima[2][row_stream::MAX_WARPS];
  __shared__ uint64_t barriers[row_stream::MAX_WARPS * row_stream::MAX_STAGES];
  extern __shared__ uint4 slots[];
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32;
  for (int i = thread; i < 2 * row_stream::MAX_WARPS; i += threads)
    maxima[i / row_stream::MAX_WARPS][i % row_stream::MAX_WARPS] = 0;
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
  float row_next = tops && static_cast<int>(blockIdx.x) < grad.m ? __ldg(row + blockIdx.x) : 0.f;
  int side = 0;
  for (int m = blockIdx.x; m < grad.m; m += gridDim.x, side ^= 1) {
    One now[VECTORS];
    {
      uint4 held[VECTORS];
      share.take(held);
#pragma unroll
      for (int i = 0; i < VECTORS; i++) now[i].words = held[i];
    }
    share.taken();
    const float row_now = row_next;
    if (tops && m + static_cast<int>(gridDim.x) < grad.m) row_next = __ldg(row + m + gridDim.x);
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
#pragma unroll
      for (int e = 0; e < WIDTH; e++) most = larger(most, __fmul_rn(now[i][e], by[i][e]));
    const int of_warp = __reduce_max_sync(~0u, __float_as_int(most));
    if (lane == 0) maxima[side][thread / 32] = of_warp;
    // between a warp's maximum and all warps': what needs neither
    if (tops)
#pragma unroll
      for (int i = 0; i < VECTORS; i++)
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
          top[i][e] = larger(top[i][e], __fmul_rn(now[i][e], row_now));
    __syncthreads();
    const float absmax = __int_as_float(__reduce_max_sync(~0u, maxima[side][lane]));
    const float scale = __fdiv_rn(absmax, 127.f);
    if (thread == 0) scales[m] = scale;
    const Divisor divisor(scale);
    const bool plain = divisor.plain();
    int8_t* const out = codes + static_cast<int64_t>(m) * grad.n;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      if (!share.inside(i)) continue;
      float h[WIDTH];
#pragma unroll
      for (int e = 0; e < WIDTH; e++) h[e] = __fmul_rn(now[i][e], by[i][e]);
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
  if (!tops) return;
  float* const mine = tops + static_cast<int64_t>(blockIdx.x) * grad.n;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    if (!share.inside(i)) continue;
#pragma unroll
    for (int slice = 0; slice < WIDTH / 4; slice++) {
      const float* four = top[i] + slice * 4;
      reinterpret_cast<float4*>(mine)[share.unit(i) * (WIDTH / 4) + slice] =
          make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

// scales [N] of the columns from tops [parts, N]: 32 columns a block, a part of the parts each of its
// warps
constexpr int SCALE_WARPS = 32;
__global__ void column_scales(const float* tops, int parts, int n, float* scales) {
  __shared__ float found[SCALE_WARPS][32];
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
