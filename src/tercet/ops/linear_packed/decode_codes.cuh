// Rows of 16-bit floats become int8 codes in shared memory, as kernel/device/row_codes.py has them, by
// every block for itself.
#pragma once
#include "decode_rows.cuh"

// two neighbours
__device__ __forceinline__ float2 widened(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
__device__ __forceinline__ float2 widened(uint32_t pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// round(v / scale): the quotient rounded to float32 first, as the definition has it. With the
// reciprocal rounded to nearest, one correction by the exact remainder gives that quotient; where
// something may be subnormal the division itself is taken.
struct Coder {
  float scale, reciprocal;
  bool ordinary;
  __device__ explicit Coder(float scale) : scale(scale) {
    ordinary = scale > 0x1p-60f && scale < 0x1p60f;
    reciprocal = __frcp_rn(ordinary ? scale : 1.f);
  }
  __device__ __forceinline__ uint32_t code(float v) const {
    const float near = __fmul_rn(v, reciprocal);
    const float ratio = __fmaf_rn(__fmaf_rn(-near, scale, v), reciprocal, near);
    // 1.5 * 2^23 leaves the rounded integer in the low byte
    return __float_as_uint(__fadd_rn(ratio, 12582912.f));
  }
};

// eight neighbours of a row that ends at `end`, zero from there
__device__ __forceinline__ uint4 eight_of(const uint16_t* row, int chunk, int end, bool well) {
  if (well && chunk * 8 < end) return reinterpret_cast<const uint4*>(row)[chunk];
  uint4 v = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int j = min(end - chunk * 8, 8) - 1; j >= 0; j--) {
    v.w = v.w << 16 | v.z >> 16, v.z = v.z << 16 | v.y >> 16, v.y = v.y << 16 | v.x >> 16;
    v.x = v.x << 16 | row[chunk * 8 + j];
  }
  return v;
}
// the largest magnitudes of the low and of the high numbers, as bits: a NaN has more than any number
__device__ __forceinline__ uint32_t largest_of(const uint4& raw, uint32_t pair) {
  pair = __vmaxu2(pair, __vmaxu2(raw.x & 0x7fff7fffu, raw.y & 0x7fff7fffu));
  return __vmaxu2(pair, __vmaxu2(raw.z & 0x7fff7fffu, raw.w & 0x7fff7fffu));
}

// codes of a row whose scale is subnormal, or nearly, by division; zero where it is 0, inf or NaN
template <class X> __device__ __noinline__ uint2 divided(uint4 raw, float scale) {
  const bool usable = scale > 0.f && scale < INFINITY;
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const float2 two = widened(pairs[j / 2], X());
    const float ratio = rintf(__fdiv_rn(j % 2 ? two.y : two.x, usable ? scale : 1.f));
    const int code = usable ? static_cast<int>(fminf(fmaxf(ratio, -127.f), 127.f)) : 0;
    words[j / 4] |= (static_cast<uint32_t>(code) & 0xffu) << (8 * (j % 4));
  }
  return make_uint2(words[0], words[1]);
}
template <class X> __device__ __forceinline__ uint2 codes_of(const uint4& raw, const Coder& coder) {
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
  uint32_t two[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 v = widened(pairs[i], X());
    two[i] = __byte_perm(coder.code(v.x), coder.code(v.y), 0x0040);
  }
  return make_uint2(__byte_perm(two[0], two[1], 0x5410), __byte_perm(two[2], two[3], 0x5410));
}

// All of each row is looked at for its scale; codes of `rows.first` and `columns` from there are made, zero
// past the end. A thread holds what it has loaded until the largest of all is known, if the rows lie well.
// By all threads; `tops` is a word for each warp.
template <class X>
__device__ __forceinline__ void stage_codes(const Rows& rows, int k, int columns, uint32_t* tops,
                                            float* scales, unsigned char* to) {
  constexpr int HELD = 8;
  const bool well = lies_well(rows, 2) && k % 8 == 0;
  const int thread = thread_of_block(), threads = threads_of_block();
  const int first = rows.first / 8, last = first + columns / 8, chunks = max((k + 7) / 8, last);
#pragma unroll 1
  for (int m = 0; m < rows.count; m++) {
    const uint16_t* const row = static_cast<const uint16_t*>(rows.x) + m * rows.pitch;
    unsigned char* const there = to + m * rows.stride - rows.first;
    uint4 held[HELD];
    uint32_t pair = 0;
    if (well) {
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        const int chunk = thread + i * threads;
        held[i] = make_uint4(0, 0, 0, 0);
        if (chunk * 8 < k) held[i] = reinterpret_cast<const uint4*>(row)[chunk];
      }
#pragma unroll
      for (int i = 0; i < HELD; i++) pair = largest_of(held[i], pair);
    }
#pragma unroll 1
    for (int i = thread + well * HELD * threads; i < chunks; i += threads)
      pair = largest_of(eight_of(row, i, k, well), pair);
    const uint32_t top = __reduce_max_sync(~0u, max(pair >> 16, pair & 0xffffu));
    if (m > 0) __syncthreads();
    if (threadIdx.x == 0) tops[thread / 32] = top;
    __syncthreads();
    uint32_t largest = 0;
#pragma unroll 4
    for (int i = 0; i < threads / 32; i++) largest = max(largest, tops[i]);
    const Coder coder(__fdiv_rn(widened(largest, X()).x, 127.f));
    if (thread == 0) scales[m] = coder.scale;
    const bool quick = well && coder.ordinary;
    if (quick) {
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        const int chunk = thread + i * threads;
        if (chunk >= first && chunk < last)
          *reinterpret_cast<uint2*>(there + chunk * 8) = codes_of<X>(held[i], coder);
      }
    }
#pragma unroll 1
    for (int i = thread + quick * HELD * threads; i < last; i += threads) {
      if (i < first) continue;
      const uint4 raw = eight_of(row, i, k, well);
      *reinterpret_cast<uint2*>(there + i * 8) =
          coder.ordinary ? codes_of<X>(raw, coder) : divided<X>(raw, coder.scale);
    }
  }
}
