// What codes stand for as neighbouring 16-bit floats, exact: of a word of four 8-bit ones the even or the odd two, of
// eight 4-bit ones two four apart.
#pragma once
#include "instructions.cuh"

// keys and values that are no codes
struct Floats {
  static constexpr int BITS = 16;
};

struct Int8 {
  static constexpr int BITS = 8;
  // in two's complement a code is its low seven bits less 128 where the eighth is set: 128 + low, and 128 or 256,
  // are bfloat16 numbers whose bits are at hand
  static __device__ __forceinline__ uint32_t even(uint32_t w, __nv_bfloat16) {
    const uint32_t low = (w & 0x007f007fu) | 0x43004300u, top = (w & 0x00800080u) | 0x43004300u;
    const __nv_bfloat162 two = __hsub2(reinterpret_cast<const __nv_bfloat162&>(low),
                                       reinterpret_cast<const __nv_bfloat162&>(top));
    return reinterpret_cast<const uint32_t&>(two);
  }
  static __device__ __forceinline__ uint32_t even(uint32_t w, __half) {
    // 1024 + 128 + code, less 1152
    const uint32_t biased = ((w ^ 0x00800080u) & 0x00ff00ffu) | 0x64006400u;
    const __half2 two = __hsub2(reinterpret_cast<const __half2&>(biased), __float2half2_rn(1152.f));
    return reinterpret_cast<const uint32_t&>(two);
  }
  template <class X> static __device__ __forceinline__ uint32_t odd(uint32_t w, X x) { return even(w >> 8, x); }
};

// e4m3: sign and the other seven bits moved to where the type's exponent ends are the number times a power of two,
// subnormal ones too
struct E4M3 {
  static constexpr int BITS = 8;
  static __device__ __forceinline__ uint32_t odd(uint32_t w, __nv_bfloat16) {
    const uint32_t small = (w & 0x80008000u) | (w >> 4 & 0x07f007f0u);
    const __nv_bfloat162 two =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(small), __float2bfloat162_rn(0x1p120f));
    return reinterpret_cast<const uint32_t&>(two);
  }
  static __device__ __forceinline__ uint32_t odd(uint32_t w, __half) {
    const uint32_t small = (w & 0x80008000u) | (w >> 1 & 0x3f803f80u);
    const __half2 two = __hmul2(reinterpret_cast<const __half2&>(small), __float2half2_rn(256.f));
    return reinterpret_cast<const uint32_t&>(two);
  }
  template <class X> static __device__ __forceinline__ uint32_t even(uint32_t w, X x) { return odd(w << 8, x); }
};

// the I-th of eight nibbles and the one four further, 0 to 15
struct Int4 {
  static constexpr int BITS = 4;
  template <int I> static __device__ __forceinline__ uint32_t at(uint32_t w, __nv_bfloat16) {
    const uint32_t biased = (w >> 4 * I & 0x000f000fu) | 0x43004300u;
    const __nv_bfloat162 two =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(biased), __float2bfloat162_rn(128.f));
    return reinterpret_cast<const uint32_t&>(two);
  }
  template <int I> static __device__ __forceinline__ uint32_t at(uint32_t w, __half) {
    const uint32_t biased = (w >> 4 * I & 0x000f000fu) | 0x64006400u;
    const __half2 two = __hsub2(reinterpret_cast<const __half2&>(biased), __float2half2_rn(1024.f));
    return reinterpret_cast<const uint32_t&>(two);
  }
};
