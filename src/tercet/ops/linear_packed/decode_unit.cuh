// One unit of the layout "fragments" against up to 64 rows of x: 16 rows x 32 STEPS columns, 16 bytes a
// lane. Word i of a lane is register a_i of mma.m16n8k32, so decoding is a mask and at most one shift
// for four weights: the signed code stays at the top of its byte, as code * 2^(8 - BITS).
//
// bfloat16 and float16 have no k32: word 2 h holds columns 4 q .. 4 q + 3 of a half h of 16 columns in
// lane q = l % 4. Its odd bytes become the first pair of k slots of m16n8k16 and its even bytes the
// second, and x is staged to match: the odd columns of each half first, then the even ones.
#pragma once
#include "decode_machine.cuh"

template <class X> struct Product;

template <> struct Product<int8_t> {
  using Sum = int;
  static constexpr bool WHOLE = true;
  static __device__ __forceinline__ void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
template <> struct Product<__nv_bfloat16> {
  using Sum = float;
  static constexpr bool WHOLE = false;
  static __device__ __forceinline__ void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  // 128 + u is exact in bfloat16 for u < 16
  static constexpr uint32_t NIBBLE = 0x43084308u;
  static __device__ __forceinline__ uint32_t less_offset(uint32_t pair) {
    const __nv_bfloat162 offset = __float2bfloat162_rn(136.f);
    __nv_bfloat162 value = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&pair), offset);
    return *reinterpret_cast<uint32_t*>(&value);
  }
  // two signed bytes of w (biased by 128) through float32: bfloat16 has too few digits for 256 + u
  static __device__ __forceinline__ uint32_t bytes(uint32_t biased, bool odd) {
    const float low = __uint_as_float(__byte_perm(biased, 0x4b000000u, odd ? 0x7651 : 0x7650));
    const float high = __uint_as_float(__byte_perm(biased, 0x4b000000u, odd ? 0x7653 : 0x7652));
    __nv_bfloat162 value = __floats2bfloat162_rn(low - 8388736.f, high - 8388736.f);
    return *reinterpret_cast<uint32_t*>(&value);
  }
};
template <> struct Product<__half> {
  using Sum = float;
  static constexpr bool WHOLE = false;
  static __device__ __forceinline__ void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  static constexpr uint32_t NIBBLE = 0x64086408u;
  static __device__ __forceinline__ uint32_t less_offset(uint32_t pair) {
    const __half2 offset = __float2half2_rn(1032.f);
    __half2 value = __hsub2(*reinterpret_cast<__half2*>(&pair), offset);
    return *reinterpret_cast<uint32_t*>(&value);
  }
  static __device__ __forceinline__ uint32_t bytes(uint32_t biased, bool odd) {
    const uint32_t pair = __byte_perm(biased, 0x64646464u, odd ? 0x4341 : 0x4240);
    const __half2 offset = __float2half2_rn(1152.f);
    __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&pair), offset);
    return *reinterpret_cast<uint32_t*>(&value);
  }
};

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
  return Product<X>::bytes(w ^ 0x80808080u, odd);
}

template <int BITS, int TILES, class X> struct Unit {
  using Sum = typename Product<X>::Sum;
  static constexpr int STEPS = 8 / BITS;
  static constexpr int STEP_BYTES = 32 * sizeof(X);
  static constexpr int BYTES = STEPS * STEP_BYTES;  // of x, a row

  // step j of the unit: columns 32 j to 32 j + 31
  static __device__ __forceinline__ void step(const uint32_t (&w)[4], int j, uint32_t x,
                                              uint32_t tile_bytes, Sum (&sums)[TILES][4]) {
    if constexpr (Product<X>::WHOLE) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = signed_bytes<BITS>(w[i], j);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        uint32_t b[2];
        load_matrices(x + j * STEP_BYTES + tile * tile_bytes, b);
        Product<X>::mma(sums[tile], a, b);
      }
    } else {
      uint32_t a[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[h][i] = two_floats<BITS, X>(w[2 * h + i % 2], j, i < 2);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        uint32_t b[4];
        load_matrices(x + j * STEP_BYTES + tile * tile_bytes, b);
        Product<X>::mma(sums[tile], a[0], b);
        Product<X>::mma(sums[tile], a[1], b + 2);
      }
    }
  }
  // two steps with one load of x
  static __device__ __forceinline__ void two_steps(const uint32_t (&w)[4], int j, uint32_t x,
                                                   uint32_t tile_bytes, Sum (&sums)[TILES][4]) {
    if constexpr (Product<X>::WHOLE) {
      uint32_t a[2][4];
#pragma unroll
      for (int s = 0; s < 2; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[s][i] = signed_bytes<BITS>(w[i], j + s);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        uint32_t b[4];
        load_matrices(x + j * STEP_BYTES + tile * tile_bytes, b);
        Product<X>::mma(sums[tile], a[0], b);
        Product<X>::mma(sums[tile], a[1], b + 2);
      }
    } else {
      step(w, j, x, tile_bytes, sums);
      step(w, j + 1, x, tile_bytes, sums);
    }
  }
  // all of it; x is this lane's address in shared memory for ldmatrix
  static __device__ __forceinline__ void all(const uint32_t (&w)[4], uint32_t x,
                                             uint32_t tile_bytes, Sum (&sums)[TILES][4]) {
    if constexpr (STEPS == 1)
      step(w, 0, x, tile_bytes, sums);
    else
#pragma unroll
      for (int j = 0; j < STEPS; j += 2) two_steps(w, j, x, tile_bytes, sums);
  }
};
