// One or two rows of 16-bit floats as integers, for the tensor cores' int8. The elements of a segment,
// the columns of a piece, have a step of their own, the power of two of which the largest is 2^29 to 2^30:
//
//   x[k] = step (d0[k] + 256 d1[k] + 65536 d2[k] + 2^24 d3[k]),  within 2^-30 of the segment's largest
//
// and each digit is a row of x. A segment with inf, NaN or nothing of 2^-97 and more is odd: the sums of
// such x are made one product after the other instead.
#pragma once
#include "decode_rows.cuh"
#include "decode_task.cuh"
#include "decode_unit.cuh"

constexpr int DIGITS = 4;

// The digits of the block's part of x into shared memory, row DIGITS m + d; steps[m][segment]. By all
// threads: a warp looks at a segment, of 32 EACH columns, and turns all or half of it into digits. Whether
// this thread has met an odd one.
template <int EACH> struct Segment {
  static constexpr int TAKEN = EACH < 8 ? EACH : 8, PARTS = EACH / TAKEN;
  uint32_t raw[PARTS][TAKEN / 2];  // a lane's own first, then the others'
  int m, column;                   // of the first of its own

  __device__ __forceinline__ Segment(const Rows& rows, int at, int segments) {
    using Vector = std::conditional_t<TAKEN == 4, uint2, uint4>;
    const int part = at % PARTS;
    m = at / PARTS >= segments;
    const int start = (at / PARTS - m * segments) * 32 * EACH;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
      const int here = start + ((part + i) % PARTS * 32 + static_cast<int>(threadIdx.x)) * TAKEN;
      if (i == 0) column = here;
      const int left = m < rows.count ? rows.end - rows.first - here : 0;
      const uint16_t* from = static_cast<const uint16_t*>(rows.x) + m * rows.pitch + rows.first + here;
      if (lies_well(rows, 2) && left >= TAKEN) {
        *reinterpret_cast<Vector*>(raw[i]) = *reinterpret_cast<const Vector*>(from);
      } else {
#pragma unroll
        for (int j = 0; j < TAKEN; j += 2)
          raw[i][j / 2] = (j < left ? from[j] : 0u) | (j + 1 < left ? from[j + 1] : 0u) << 16;
      }
    }
  }
  // the largest magnitude's bits, in all lanes
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < EACH / 2; i++)
      pair = __vmaxu2(pair, raw[i / (TAKEN / 2)][i % (TAKEN / 2)] & 0x7fff7fffu);
    return __reduce_max_sync(~0u, max(pair >> 16, pair & 0xffffu));
  }
  // the digits of four numbers, each times over_step: words[d] has digit d of all
  __device__ __forceinline__ void digits(int four, int type, float over_step,
                                         uint32_t (&words)[DIGITS]) const {
    uint32_t t[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t bits = raw[0][four * 2 + j / 2] >> (16 * (j % 2)) & 0xffffu;
      t[j] = (__float2int_rn(number_of(bits, type) * over_step) + 0x00808080u) ^ 0x00808080u;
    }
    const uint32_t low[2] = {__byte_perm(t[0], t[1], 0x5140), __byte_perm(t[2], t[3], 0x5140)};
    const uint32_t high[2] = {__byte_perm(t[0], t[1], 0x7362), __byte_perm(t[2], t[3], 0x7362)};
    words[0] = __byte_perm(low[0], low[1], 0x5410), words[1] = __byte_perm(low[0], low[1], 0x7632);
    words[2] = __byte_perm(high[0], high[1], 0x5410), words[3] = __byte_perm(high[0], high[1], 0x7632);
  }
};

template <int EACH>
__device__ __forceinline__ bool stage_digits(const Rows& rows, int columns, unsigned char* to,
                                             float* steps) {
  using S = Segment<EACH>;
  const int segments = columns / (32 * EACH), warps = threads_of_block() / 32;
  const int end = rows.count * segments * S::PARTS;
  bool odd = false;
  int at = thread_of_block() / 32;
  S next(rows, at, segments);
#pragma unroll 1
  for (; at < end; at += warps) {
    const S here = next;
    next = S(rows, at + warps, segments);
    const uint32_t top = here.largest();
    const uint32_t exponent = __float_as_uint(number_of(top, rows.type)) >> 23;
    const bool usable = exponent >= 30 && exponent < 255;
    odd |= top && !usable;
    const float over_step = __uint_as_float(usable ? (283 - exponent) << 23 : 0);
    if (threadIdx.x == 0) steps[at / S::PARTS] = __uint_as_float(usable ? (exponent - 29) << 23 : 0);
    uint32_t words[S::TAKEN / 4][DIGITS];
#pragma unroll
    for (int i = 0; i < S::TAKEN / 4; i++) here.digits(i, rows.type, over_step, words[i]);
#pragma unroll
    for (int d = 0; d < DIGITS; d++) {
      unsigned char* const there = to + (here.m * DIGITS + d) * rows.stride + here.column;
      if constexpr (S::TAKEN == 8)
        *reinterpret_cast<uint2*>(there) = make_uint2(words[0][d], words[1][d]);
      else
        *reinterpret_cast<uint32_t*>(there) = words[0][d];
    }
  }
  return odd;
}

// the sum over some units of one row of W and of x, times 2^(8 - BITS) as the tensor cores' sums are
template <int BITS>
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
    sum += level * number_at(task.x, m * task.x_pitch + first + k, task.x_type);
  }
  return sum;
}
