// Rows of 16-bit floats become int8 codes in shared memory, as packed_weight/row_codes.py has them, by
// every block for itself.
#pragma once
#include "stage_x.cuh"

// round(v / scale), the quotient rounded to float32 first, as the definition has it.
//
// With scale = absmax / 127, v / scale is a whole number and a half, or at least 2^-19 of itself away from
// one: v and absmax have at most 11 digits. So any reciprocal within 2^-20 will do, but for the halves. Of
// those there is only 63.5, half of absmax, unless 127 divides the digits of absmax: so the reciprocal is
// moved to the side where that one goes. Where it does not serve, the division itself is taken.
struct Coder {
  float scale, reciprocal;
  bool ordinary;
  template <class X> __device__ Coder(uint32_t absmax, X) {
    const float most = widened(absmax, X()).x;
    scale = __fdiv_rn(most, 127.f);
    const uint32_t digits = __float_as_uint(most) >> 12 & 0x7ffu | 0x800u;
    ordinary = scale > 0x1p-60f && scale < 0x1p60f && digits % 127 != 0;
    // the remainder is exact; below this one the quotient is rounded to less than 63.5
    const bool less = __fmaf_rn(-63.5f, scale, 0.5f * most) < -0x1p-19f * scale;
    const float near = __frcp_rn(ordinary ? scale : 1.f);
    reciprocal = __fmaf_rn(near, less ? -0x1p-21f : 0x1p-21f, near);
  }
  __device__ __forceinline__ uint32_t code(float v) const {
    // 1.5 * 2^23 leaves the rounded integer in the low byte
    return __float_as_uint(__fmaf_rn(v, reciprocal, 12582912.f));
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

// codes by division; zero where the scale is 0, inf or NaN
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
// By all threads; `tops` is a word for each warp; `loaded` is called when the first loads are in flight.
template <class X, class Loaded>
__device__ __forceinline__ void stage_codes(const Rows& rows, int k, int columns, uint32_t* tops,
                                            float* scales, unsigned char* to, Loaded loaded) {
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
      if (m == 0) loaded();
#pragma unroll
      for (int i = 0; i < HELD; i++) pair = largest_of(held[i], pair);
    }
#pragma unroll 1
    for (int i = thread + well * HELD * threads; i < chunks; i += threads)
      pair = largest_of(eight_of(row, i, k, well), pair);
    if (m == 0 && !well) loaded();
    const uint32_t top = __reduce_max_sync(~0u, max(pair >> 16, pair & 0xffffu));
    if (m > 0) __syncthreads();
    if (threadIdx.x == 0) tops[thread / 32] = top;
    __syncthreads();
    uint32_t largest = 0;
#pragma unroll 4
    for (int i = 0; i < threads / 32; i++) largest = max(largest, tops[i]);
    const Coder coder(largest, X());
    if (thread == 0) scales[m] = coder.scale;
    const bool quick = well && coder.ordinary;
    if (quick) {
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        if (i * threads >= last) break;  // what is jumped over need not be fetched
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
