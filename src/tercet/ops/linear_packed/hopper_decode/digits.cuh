// One or two rows of 16-bit floats as integers, for the tensor cores' int8. The elements of a segment,
// the columns of a piece, have a step of their own, the power of two of which the largest is 2^29 to 2^30:
//
//   x[k] = step (d0[k] + 256 d1[k] + 65536 d2[k] + 2^24 d3[k]),  within 2^-30 of the segment's largest
//
// and each digit is a row of x. A segment with inf, NaN or nothing of 2^-97 and more is odd: the sums of
// such x are made one product after the other instead.
#pragma once
#include "stage_x.cuh"
#include "task.cuh"
#include "packed_weight/hopper/mma_unit.cuh"

constexpr int DIGITS = 4;

// The digits of the block's part of x into shared memory, row DIGITS m + d; steps[m][segment]. By all
// threads, a warp a segment of 32 EACH columns; `loaded` is called when its first load is in flight. Whether
// this thread has met an odd one.
template <class X, int EACH, class Loaded>
__device__ __forceinline__ bool stage_digits(const Rows& rows, int columns, unsigned char* to,
                                             float* steps, Loaded loaded) {
  const bool well = lies_well(rows, 2);
  const int segments = columns / (32 * EACH), lane = threadIdx.x;
  bool odd = false, first = true;
#pragma unroll 1
  for (int at = thread_of_block() / 32; at < rows.count * segments; at += threads_of_block() / 32) {
    const int m = at >= segments, column = ((at - m * segments) * 32 + lane) * EACH;
    const uint16_t* from =
        static_cast<const uint16_t*>(rows.x) + m * rows.pitch + rows.first + column;
    const int left = rows.end - rows.first - column;
    uint32_t raw[EACH / 2];
    if (well && left >= EACH) {
      using Vector = std::conditional_t<EACH == 4, uint2, uint4>;
#pragma unroll
      for (int i = 0; i < EACH * 2 / static_cast<int>(sizeof(Vector)); i++)
        reinterpret_cast<Vector*>(raw)[i] = reinterpret_cast<const Vector*>(from)[i];
    } else {
#pragma unroll
      for (int i = 0; i < EACH; i += 2)
        raw[i / 2] = (i < left ? from[i] : 0u) | (i + 1 < left ? from[i + 1] : 0u) << 16;
    }
    if (first) first = false, loaded();
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < EACH / 2; i++) pair = __vmaxu2(pair, raw[i] & 0x7fff7fffu);
    const uint32_t top = __reduce_max_sync(~0u, max(pair >> 16, pair & 0xffffu));
    const uint32_t exponent = __float_as_uint(widened(top, X()).x) >> 23;
    const bool usable = exponent >= 30 && exponent < 255;
    odd |= top && !usable;
    const float over_step = __uint_as_float(usable ? (283 - exponent) << 23 : 0);
    if (lane == 0) steps[at] = __uint_as_float(usable ? (exponent - 29) << 23 : 0);
    uint32_t words[DIGITS][EACH / 4];
#pragma unroll
    for (int i = 0; i < EACH / 4; i++) {
      uint32_t t[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 two = widened(raw[i * 2 + j / 2], X());
        const int rounded = __float2int_rn((j % 2 ? two.y : two.x) * over_step);
        t[j] = (rounded + 0x00808080u) ^ 0x00808080u;
      }
      const uint32_t low[2] = {__byte_perm(t[0], t[1], 0x5140), __byte_perm(t[2], t[3], 0x5140)};
      const uint32_t high[2] = {__byte_perm(t[0], t[1], 0x7362), __byte_perm(t[2], t[3], 0x7362)};
      words[0][i] = __byte_perm(low[0], low[1], 0x5410);
      words[1][i] = __byte_perm(low[0], low[1], 0x7632);
      words[2][i] = __byte_perm(high[0], high[1], 0x5410);
      words[3][i] = __byte_perm(high[0], high[1], 0x7632);
    }
#pragma unroll
    for (int d = 0; d < DIGITS; d++) {
      unsigned char* const there = to + (m * DIGITS + d) * rows.stride + column;
      if constexpr (EACH == 16)
        *reinterpret_cast<uint4*>(there) =
            make_uint4(words[d][0], words[d][1], words[d][2], words[d][3]);
      else if constexpr (EACH == 8)
        *reinterpret_cast<uint2*>(there) = make_uint2(words[d][0], words[d][1]);
      else
        *reinterpret_cast<uint32_t*>(there) = words[d][0];
    }
  }
  if (first) loaded();
  return odd;
}

// the sum over some units of one row of W and of x, times 2^(8 - BITS) as the tensor cores' sums are;
// scales of groups are in it
template <int BITS, bool GROUPED>
__device__ __noinline__ float plain_sum(const Task& task, int64_t row_block, int row, int m,
                                        int first_unit, int units) {
  constexpr int COLUMNS = 256 / BITS;
  const uint32_t* const words =
      reinterpret_cast<const uint32_t*>(task.codes + (row_block * task.units + first_unit) * 32);
  const int first = first_unit * COLUMNS, end = min(units * COLUMNS, task.k - first);
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < end; k++) {
    const int lane = row % 8 * 4 + k % 16 / 4, word = k % 32 / 16 * 2 + row / 8;
    const int bit = k % 4 * 8 + k % COLUMNS / 32 * BITS;
    const int code = words[(k / COLUMNS * 32 + lane) * 4 + word] << (32 - BITS - bit);
    const float level = static_cast<float>(code >> (32 - BITS)) * (1 << (8 - BITS));
    float scale = 1.f;
    if (GROUPED) {
      const int group = min((first + k) / 32 >> task.group_steps_log2, task.groups - 1);
      scale = number_at(task.scale, (row_block * task.groups + group) * 16 + row, task.scale_type);
    }
    sum += level * scale * number_at(task.x, m * task.x_pitch + first + k, task.x_type);
  }
  return sum;
}
