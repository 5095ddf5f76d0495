// Codes of the rows of grad [M, N] * column [N], and on the way the largest |grad * row [M]| of each
// column: one pass over grad. Blocks walk over rows, which the copy engine brings.
#pragma once
#include "codes_of.cuh"
#include "row_stream.cuh"

struct Grad {
  const void* data;
  int64_t pitch;  // bytes from row to row, a multiple of 16
  int m, n;       // n is a multiple of 8
};

// VECTORS of 16 bytes a lane. `tops` [blocks, N] takes the largest of each column in this block's
// rows; null where nobody asks.
template <int TYPE, int VECTORS>
__global__ void __launch_bounds__(1024, 1)
    row_codes(const Grad grad, const float* column, int one_column, const float* row, int8_t* codes,
              float* scales, float* tops, int stages) {
  using One = Vector<TYPE>;
  constexpr int WIDTH = One::WIDTH;
  __shared__ int maxima[2][row_stream::MAX_WARPS];
  __shared__ uint64_t barriers[row_stream::MAX_WARPS * row_stream::MAX_STAGES];
  extern __shared__ float4 memory[];  // what h is scaled with, then the slots of the rows
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32;
  const int units = grad.n / WIDTH;
  // of each unit's numbers the first four, then of each the next four
  float4* const columns = memory;
  for (int v = thread; v < grad.n / 4; v += threads) {
    const float one = one_column ? __ldg(column) : 0.f;
    columns[v % (WIDTH / 4) * units + v / (WIDTH / 4)] =
        one_column ? make_float4(one, one, one, one)
                   : __ldg(reinterpret_cast<const float4*>(column) + v);
  }
  for (int i = thread; i < 2 * row_stream::MAX_WARPS; i += threads)
    maxima[i / row_stream::MAX_WARPS][i % row_stream::MAX_WARPS] = 0;
  row_stream::WarpShare<VECTORS> share(grad.data, grad.pitch, grad.m, units, stages,
                                       memory + grad.n / 4, barriers);
  __syncthreads();
  float top[VECTORS][WIDTH];
#pragma unroll
  for (int i = 0; i < VECTORS * WIDTH; i++) top[i / WIDTH][i % WIDTH] = 0.f;
  float row_next = tops && static_cast<int>(blockIdx.x) < grad.m ? __ldg(row + blockIdx.x) : 0.f;
  int turn = 0;
  for (int m = blockIdx.x; m < grad.m; m += gridDim.x, turn ^= 1) {
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
    const auto scaled = [&](int i, float(&h)[WIDTH]) {
      const int v = share.unit(i);
#pragma unroll
      for (int part = 0; part < WIDTH / 4; part++) {
        const float4 by = columns[part * units + v];
        h[part * 4] = __fmul_rn(now[i][part * 4], by.x);
        h[part * 4 + 1] = __fmul_rn(now[i][part * 4 + 1], by.y);
        h[part * 4 + 2] = __fmul_rn(now[i][part * 4 + 2], by.z);
        h[part * 4 + 3] = __fmul_rn(now[i][part * 4 + 3], by.w);
      }
    };
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      if (!share.inside(i)) continue;
      float h[WIDTH];
      scaled(i, h);
#pragma unroll
      for (int e = 0; e < WIDTH; e++) most = larger(most, h[e]);
      if (tops)
#pragma unroll
        for (int e = 0; e < WIDTH; e++)
          top[i][e] = larger(top[i][e], __fmul_rn(now[i][e], row_now));
    }
    const int of_warp = __reduce_max_sync(~0u, __float_as_int(most));
    if (lane == 0) maxima[turn][thread / 32] = of_warp;
    __syncthreads();
    const float absmax = __int_as_float(__reduce_max_sync(~0u, maxima[turn][lane]));
    const float scale = __fdiv_rn(absmax, 127.f);
    if (thread == 0) scales[m] = scale;
    const Divisor divisor(scale);
    int8_t* const out = codes + static_cast<int64_t>(m) * grad.n;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      if (!share.inside(i)) continue;
      float h[WIDTH];
      scaled(i, h);
      uint32_t code[WIDTH];
      if (divisor.plain()) {
#pragma unroll
        for (int e = 0; e < WIDTH; e++) code[e] = nearest(divisor.plainly(h[e]));
      } else {
#pragma unroll
        for (int e = 0; e < WIDTH; e++) code[e] = nearest(divisor.ratio(h[e]));
      }
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
