// One unit of the layout "fragments" against up to 16 rows of x: 16 rows x 32 STEPS columns, 16 bytes a
// lane. Word i of a lane is register a_i of mma.m16n8k32, so decoding is a mask and at most one shift
// for four weights: the signed code stays at the top of its byte, as code * 2^(8 - BITS).
//
// bfloat16 and float16 have no k32: word 2 h holds columns 4 q .. 4 q + 3 of a half h of 16 columns in
// lane q = l % 4. Its odd bytes become the first pair of k slots of m16n8k16 and its even bytes the
// second, and x lies to match: of each 16 columns the odd ones first, then the even ones.
#pragma once
#include "ptx.cuh"

template <class X> struct Product;

template <> struct Product<int8_t> {
  using Sum = int;
  static constexpr bool FULL = true;
  static constexpr uint32_t ONES = 0x01010101u;
  static __device__ __forceinline__ void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
    mma_int8(c, a, b);
  }
};
template <> struct Product<__nv_bfloat16> {
  using Sum = float;
  static constexpr bool FULL = false;
  static constexpr uint32_t ONES = 0x3f803f80u;
  static __device__ __forceinline__ void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
    mma_bfloat16(c, a, b);
  }
  // 128 + u is exact in bfloat16 for u < 16
  static constexpr uint32_t NIBBLE = 0x43084308u;
  static __device__ __forceinline__ uint32_t less_offset(uint32_t pair) {
    const __nv_bfloat162 offset = __float2bfloat162_rn(136.f);
    __nv_bfloat162 value = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&pair), offset);
    return *reinterpret_cast<uint32_t*>(&value);
  }
  // two signed bytes of w, biased by 128, through float32: bfloat16 has too few digits for 256 + u
  static __device__ __forceinline__ uint32_t bytes(uint32_t w, bool odd) {
    const uint32_t biased = w ^ 0x80808080u;
    const float low = __uint_as_float(__byte_perm(biased, 0x4b000000u, odd ? 0x7651 : 0x7650));
    const float high = __uint_as_float(__byte_perm(biased, 0x4b000000u, odd ? 0x7653 : 0x7652));
    __nv_bfloat162 value = __floats2bfloat162_rn(low - 8388736.f, high - 8388736.f);
    return *reinterpret_cast<uint32_t*>(&value);
  }
};
template <> struct Product<__half> {
  using Sum = float;
  static constexpr bool FULL = false;
  static constexpr uint32_t ONES = 0x3c003c00u;
  static __device__ __forceinline__ void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
    mma_float16(c, a, b);
  }
  static constexpr uint32_t NIBBLE = 0x64086408u;
  static __device__ __forceinline__ uint32_t less_offset(uint32_t pair) {
    const __half2 offset = __float2half2_rn(1032.f);
    __half2 value = __hsub2(*reinterpret_cast<__half2*>(&pair), offset);
    return *reinterpret_cast<uint32_t*>(&value);
  }
  static __device__ __forceinline__ uint32_t bytes(uint32_t w, bool odd) {
    const uint32_t pair = __byte_perm(w ^ 0x80808080u, 0x64646464u, odd ? 0x4341 : 0x4240);
    const __half2 offset = __float2half2_rn(1152.f);
    __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&pair), offset);
    return *reinterpret_cast<uint32_t*>(&value);
  }
};

// 16-bit floats that are multiplied as int8 digits, rows of x: hopper_decode/digits.cuh
template <class T> struct Digits {
  using Float = T;
  int8_t digit;
};
template <class T> struct Product<Digits<T>> : Product<int8_t> {};
// and those of which int8 codes are made: hopper_decode/quantize_x.cuh
struct Quantized {
  int8_t code;
};
template <> struct Product<Quantized> : Product<int8_t> {};

// four codes of a word as signed bytes, each times 2^(8 - BITS)
template <int BITS> __device__ __forceinline__ uint32_t signed_bytes(uint32_t w, int j) {
  if (BITS == 8) return w;
  return (w << (8 - BITS - BITS * j)) & (BITS == 2 ? 0xC0C0C0C0u : 0xF0F0F0F0u);
}
// two codes of a word, of its odd or its even bytes, as floats; ternary ones (2 bits) times 2
template <int BITS, class X>
__device__ __forceinline__ uint32_t two_floats(uint32_t w, int j, bool odd) {
  if constexpr (BITS == 2) return (w << (6 - 2 * j + (odd ? 0 : 8))) & 0xC000C000u;
  if constexpr (BITS == 4)
    return Product<X>::less_offset(((w >> (4 * j + (odd ? 8 : 0))) & 0x000f000fu) ^
                                   Product<X>::NIBBLE);
  return Product<X>::bytes(w, odd);
}

template <int BITS, int TILES, class X> struct Unit {
  using Sum = typename Product<X>::Sum;
  static constexpr int STEPS = 8 / BITS;
  static constexpr int COLUMNS = 32 * STEPS;
  static constexpr int BYTES = COLUMNS * sizeof(X);  // of x, a row
  static constexpr int STEP_WORDS = sizeof(X) * 2;   // of x a lane holds, a step and tile
  static constexpr int SUM_BYTES = STEPS * TILES * 32;  // of sums of x, a float for each row of x

  // Sums of a unit start here. Integers are smaller than 2^22 (127 * 2^7 * 128 columns at most), so as
  // the low bits of 1.5 * 2^23 they are a float, without a conversion.
  static constexpr Sum ZERO = Product<X>::FULL ? 0x4b400000 : 0;
  static __device__ __forceinline__ float value(Sum sum) {
    if constexpr (Product<X>::FULL) return __uint_as_float(sum) - 12582912.f;
    return sum;
  }

  // x in registers, 64 bytes of a row at a time: HELD_UNITS units, [step][word]; x is the address
  // in shared memory of the 16 bytes of lane / 8, in row lane % 8
  static constexpr int HELD_UNITS = BYTES < 64 ? 2 : 1;
  static __device__ __forceinline__ void hold(uint32_t x,
                                              uint32_t (&held)[HELD_UNITS * STEPS * STEP_WORDS]) {
#pragma unroll
    for (int i = 0; i < HELD_UNITS * BYTES / 64; i++) load_matrices(x + i * 64, held + i * 4);
  }

  // sums += the sum of x over a step, in every row of the tile
  static __device__ __forceinline__ void sum_step(const uint32_t* x, Sum (&sums)[4]) {
    const uint32_t ones[4] = {Product<X>::ONES, Product<X>::ONES, Product<X>::ONES, Product<X>::ONES};
    Product<X>::mma(sums, ones, x);
    if constexpr (!Product<X>::FULL) Product<X>::mma(sums, ones, x + 2);
  }

  // step j of a unit, columns 32 j to 32 j + 31, with that step's words of x of one tile
  static __device__ __forceinline__ void step(const uint32_t (&w)[4], int j,
                                              const uint32_t* const (&x)[TILES],
                                              Sum (&sums)[TILES][4]) {
    if constexpr (Product<X>::FULL) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = signed_bytes<BITS>(w[i], j);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) Product<X>::mma(sums[tile], a, x[tile]);
    } else {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = two_floats<BITS, X>(w[2 * h + i % 2], j, i < 2);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) Product<X>::mma(sums[tile], a, x[tile] + 2 * h);
      }
    }
  }
};
