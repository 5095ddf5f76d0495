// Codes of the rows of grad [M, N] * column [N], and on the way the largest |grad * row [M]| of each
// column: one pass over grad, each block walks over rows, the next row on its way into registers
// while this one is computed.
#pragma once
#include "codes_of.cuh"

struct Grad {
  const void* data;
  int64_t pitch;  // bytes from row to row, a multiple of 16
  int m, n;       // n is a multiple of 8
};

constexpr int ROW_WARPS = 32;

// VECTORS of 8 columns a thread: vector i of thread t is number t + i * threads. `tops` [blocks, N]
// takes the largest of each column in this block's rows; null where nobody asks.
template <int TYPE, int VECTORS>
__global__ void __launch_bounds__(VECTORS == 4 ? 512 : 1024, 1)
    row_codes(const Grad grad, const float* column, int one_column, const float* row, int8_t* codes,
              float* scales, float* tops) {
  __shared__ int maxima[2][ROW_WARPS];
  // what h is scaled with: the lower half of each vector's eight, then the upper halves
  extern __shared__ float4 columns[];
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32;
  const int vectors = grad.n / 8;
  for (int v = thread; v < vectors * 2; v += threads) {
    const float one = one_column ? __ldg(column) : 0.f;
    columns[v % 2 * vectors + v / 2] =
        one_column ? make_float4(one, one, one, one)
                   : __ldg(reinterpret_cast<const float4*>(column) + v);
  }
  if (thread < 2 * ROW_WARPS) maxima[thread / ROW_WARPS][thread % ROW_WARPS] = 0;
  __syncthreads();
  Vector<TYPE> next[VECTORS];
  float row_next = 0.f;
  const auto fetch = [&](int m) {
    const char* from = static_cast<const char*>(grad.data) + m * grad.pitch;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      const int v = thread + i * threads;
      if (v < vectors) next[i].load(from + static_cast<int64_t>(v) * Vector<TYPE>::BYTES);
    }
    if (tops) row_next = __ldg(row + m);
  };
  float top[VECTORS][8];
#pragma unroll
  for (int i = 0; i < VECTORS * 8; i++) top[i / 8][i % 8] = 0.f;
#pragma unroll
  for (int i = 0; i < VECTORS; i++) next[i].clear();
  int turn = 0;
  if (static_cast<int>(blockIdx.x) < grad.m) fetch(blockIdx.x);
  for (int m = blockIdx.x; m < grad.m; m += gridDim.x, turn ^= 1) {
    Vector<TYPE> now[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) now[i] = next[i];
    const float row_now = row_next;
    if (m + static_cast<int>(gridDim.x) < grad.m) fetch(m + gridDim.x);
    const auto scaled = [&](int i, float(&h)[8]) {
      const int v = min(thread + i * threads, vectors - 1);
      const float4 low = columns[v], high = columns[vectors + v];
      const float by[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int e = 0; e < 8; e++) h[e] = __fmul_rn(now[i][e], by[e]);
    };
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      if (thread + i * threads >= vectors) continue;
      float h[8];
      scaled(i, h);
#pragma unroll
      for (int e = 0; e < 8; e++) most = larger(most, h[e]);
      if (tops)
#pragma unroll
        for (int e = 0; e < 8; e++) top[i][e] = larger(top[i][e], __fmul_rn(now[i][e], row_now));
    }
    const int of_warp = __reduce_max_sync(~0u, __float_as_int(most));
    if (lane == 0) maxima[turn][thread / 32] = of_warp;
    __syncthreads();
    const float absmax = __int_as_float(__reduce_max_sync(~0u, maxima[turn][lane]));
    const float scale = __fdiv_rn(absmax, 127.f);
    if (thread == 0) scales[m] = scale;
    const Divisor divisor(scale);
    uint2* out = reinterpret_cast<uint2*>(codes + static_cast<int64_t>(m) * grad.n);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      const int v = thread + i * threads;
      if (v >= vectors) continue;
      float h[8];
      scaled(i, h);
      uint32_t code[8];
      if (divisor.plain) {
#pragma unroll
        for (int e = 0; e < 8; e++) code[e] = nearest(divisor.plainly(h[e]));
      } else {
#pragma unroll
        for (int e = 0; e < 8; e++) code[e] = nearest(divisor.ratio(h[e]));
      }
      out[v] = make_uint2(four_bytes(code[0], code[1], code[2], code[3]),
                          four_bytes(code[4], code[5], code[6], code[7]));
    }
  }
  if (!tops) return;
  float4* mine = reinterpret_cast<float4*>(tops + static_cast<int64_t>(blockIdx.x) * grad.n);
#pragma unroll
  for (int i = 0; i < VECTORS; i++) {
    const int v = thread + i * threads;
    if (v >= vectors) continue;
    mine[v * 2] = make_float4(top[i][0], top[i][1], top[i][2], top[i][3]);
    mine[v * 2 + 1] = make_float4(top[i][4], top[i][5], top[i][6], top[i][7]);
  }
}

// scales [N] of the columns from tops [parts, N]: a warp's width of columns a block, a part of the
// parts each of its warps
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
