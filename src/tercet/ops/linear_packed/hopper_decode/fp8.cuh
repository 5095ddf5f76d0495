// 8-bit floats as 16-bit ones, exactly, NaN too: codes of x, and of weights against 16-bit x.
#pragma once
#include <cuda_fp8.h>

#include "packed_weight/hopper/mma_unit.cuh"

// the odd, or the even, of four codes as float16
template <__nv_fp8_interpretation_t KIND>
__device__ __forceinline__ uint32_t two_halves(uint32_t codes, bool odd) {
  // e5m2 is the upper byte of a float16
  if constexpr (KIND == __NV_E5M2) return (odd ? codes : codes << 8) & 0xff00ff00u;
  const uint32_t two = __byte_perm(codes, 0, odd ? 0x4431 : 0x4420);
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), KIND);
  return reinterpret_cast<const uint32_t&>(pair);
}

// x of type T against weights whose 8 bits are a float
template <class T, __nv_fp8_interpretation_t KIND> struct Against {
  T x;
};

template <__nv_fp8_interpretation_t KIND> struct Product<Against<__half, KIND>> : Product<__half> {
  static __device__ __forceinline__ uint32_t bytes(uint32_t w, bool odd) {
    return two_halves<KIND>(w, odd);
  }
};
template <__nv_fp8_interpretation_t KIND>
struct Product<Against<__nv_bfloat16, KIND>> : Product<__nv_bfloat16> {
  static __device__ __forceinline__ uint32_t bytes(uint32_t w, bool odd) {
    const uint32_t pair = two_halves<KIND>(w, odd);
    const float2 wide = __half22float2(reinterpret_cast<const __half2&>(pair));
    const __nv_bfloat162 value = __floats2bfloat162_rn(wide.x, wide.y);
    return reinterpret_cast<const uint32_t&>(value);
  }
};
