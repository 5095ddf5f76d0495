// int8 codes of numbers and their common scale, the bits of packed_weight/row_codes.py: absmax / 127,
// IEEE divisions, to nearest with ties to even, or at random by Philox.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2;

// The numbers of 16 bytes of memory.
template <int TYPE>
struct Vector {
  static constexpr int WIDTH = TYPE == FLOAT32 ? 4 : 8;
  uint4 words;
  __device__ float operator[](int i) const {
    const int at = TYPE == FLOAT32 ? i : i / 2;
    const uint32_t word = at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
    if constexpr (TYPE == FLOAT32) return __uint_as_float(word);
    if constexpr (TYPE == BFLOAT16) return __uint_as_float(i % 2 ? word & 0xFFFF0000 : word << 16);
    return __half2float(__ushort_as_half(static_cast<uint16_t>(i % 2 ? word >> 16 : word)));
  }
};

// max(top, |x|), NaN where one is
__device__ inline float larger(float top, float x) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(top) : "f"(fabsf(x)));
  return top;
}

// Divides by a scale, to the bit: one division, then two corrections an element, as
// packed_weight/triton/row_quantizer.py says.
struct Divisor {
  float minus, inverse, power;
  __device__ Divisor(float minus, float inverse, float power)
      : minus(minus), inverse(inverse), power(power) {}
  __device__ explicit Divisor(float scale) {
    const bool usable = scale > 0.f && scale < __int_as_float(0x7F800000);
    power = !usable ? 0.f : scale < 0x1p-64f ? 0x1p64f : scale > 0x1p64f ? 0x1p-64f : 1.f;
    const float divisor = usable ? __fmul_rn(scale, power) : 1.f;
    minus = -divisor;
    inverse = __frcp_rn(divisor);
  }
  // nothing has to be scaled or left out
  __device__ bool plain() const { return power == 1.f; }
  __device__ float plainly(float x) const {
    float ratio = __fmul_rn(x, inverse);
    ratio = __fmaf_rn(__fmaf_rn(ratio, minus, x), inverse, ratio);
    return __fmaf_rn(__fmaf_rn(ratio, minus, x), inverse, ratio);
  }
  // any scale: x is not finite where power is 0
  __device__ float ratio(float x) const {
    const float y = plainly(power == 0.f ? 0.f : __fmul_rn(x, power));
    return fminf(fmaxf(y, -127.f), 127.f);
  }
};

// the code in the low byte: adding 1.5 * 2^23 rounds to nearest, ties to even
constexpr float TO_INTEGER = 12582912.f;
__device__ inline uint32_t nearest(float ratio) {
  return __float_as_uint(__fadd_rn(ratio, TO_INTEGER));
}

// Codes to nearest of COUNT numbers. A product with the reciprocal rounds as the quotient does unless
// that is within 2^-16 of a tie, which the remainder shows: then, once in 25,000 numbers, all are
// divided to the bit.
template <int COUNT>
__device__ void nearest_codes(uint32_t (&code)[COUNT], const float (&x)[COUNT], const Divisor& by,
                              bool plain) {
  float farthest = 0.f;
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const float shifted = __fmaf_rn(x[i], by.inverse, TO_INTEGER);
    const float rest = __fmaf_rn(__fadd_rn(shifted, -TO_INTEGER), by.minus, x[i]);
    farthest = fmaxf(farthest, fabsf(rest));
    code[i] = __float_as_uint(shifted);
  }
  if (plain && farthest < -0.49998f * by.minus) return;
#pragma unroll
  for (int i = 0; i < COUNT; i++) code[i] = nearest(by.ratio(x[i]));
}

// floor(ratio + u), u = 2^-16 times the lower or upper half of a random word
__device__ inline uint32_t at_random(float ratio, uint32_t word, int upper) {
  const uint32_t bits = upper ? word >> 9 & 0x7FFF80 : word << 7 & 0x7FFF80;
  const float uniform = __fadd_rn(__uint_as_float(bits | 0x3F800000), -1.f);
  return __float_as_uint(__fadd_rd(__fadd_rn(ratio, uniform), TO_INTEGER));
}

__device__ inline uint32_t four_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Philox 4x32-10 (Salmon et al. 2011): the words of COUNT blocks under a seed; rounds share their keys
template <int COUNT>
__device__ void philox(uint64_t seed, const uint64_t (&block)[COUNT], uint4 (&words)[COUNT]) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = seed >> 32;
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    words[i] = make_uint4(static_cast<uint32_t>(block[i]), block[i] >> 32, 0, 0);
#pragma unroll
  for (int round = 0; round < 10; round++) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      uint4& c = words[i];
      const uint64_t first = static_cast<uint64_t>(0xD2511F53) * c.x;
      const uint64_t second = static_cast<uint64_t>(0xCD9E8D57) * c.z;
      c = make_uint4(static_cast<uint32_t>(second >> 32) ^ c.y ^ k0, static_cast<uint32_t>(second),
                     static_cast<uint32_t>(first >> 32) ^ c.w ^ k1, static_cast<uint32_t>(first));
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// floor(x / scale + u) of 8 numbers, which share a block's words
__device__ inline void random_codes(uint32_t (&code)[8], const float (&x)[8], const Divisor& by,
                                    bool plain, const uint4& words) {
  float ratio[8];
  if (plain) {
#pragma unroll
    for (int i = 0; i < 8; i++) ratio[i] = by.plainly(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) ratio[i] = by.ratio(x[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
    code[i] = at_random(
        ratio[i], i / 2 == 0 ? words.x : i / 2 == 1 ? words.y : i / 2 == 2 ? words.z : words.w, i % 2);
}
