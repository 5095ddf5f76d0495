// Packed words of 16 rows a warp, and the registers that wgmma takes as its first operand.
//
// For x of 8 bits a word is, after a shift and a mask, one register of a step of 32 columns. For x
// of 16 bits a register holds two neighbours of 16 columns: a lane takes the words of two lanes of
// its rows, `near` and `far`, and of each the two bytes that are its own. Those of columns 0 to 15
// go to the upper bytes of two halves, those of columns 16 to 31 to the lower.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "tile_shape.cuh"

// The codes at one place of each byte of a word, as the top bits of signed bytes. `zero` is 0 and
// the compiler does not know: if words were operands as they come from memory, ptxas would serialize the
// wgmmas (C7513).
template <int BITS>
__device__ uint32_t signed_bytes(uint32_t word, int field, uint32_t zero) {
  if (BITS == 8) return word ^ zero;
  constexpr uint32_t MASK = BITS == 4 ? 0xF0F0F0F0 : 0xC0C0C0C0;
  return word << (8 - BITS - BITS * field) & MASK;
}

__device__ inline uint32_t unknown_zero() {
  uint32_t zero;
  asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(zero));
  return zero;
}

template <int X>
__device__ uint32_t minus(uint32_t a, uint32_t b) {
  uint32_t c;
  if (X == FLOAT16)
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// The codes that begin at bit `at` of each half, as numbers of type X; ternary twice as large.
// 2 bits are sign and magnitude, 2.0 or -2.0 at the top of either type. More bits are the fraction
// of a power of two, from which that and the sign's offset are taken; 7 bits are too few for a byte
// in bfloat16, whose top bit then counts twice: it makes 128 to 256, and is subtracted.
// `zero` is 0 and the compiler does not know: a mask and a sign's flip are one instruction only
// where one of their constants is in a register.
template <int X, int BITS>
__device__ uint32_t two_numbers(uint32_t halves, int at, uint32_t zero) {
  constexpr uint32_t BOTH = 0x00010001;
  constexpr uint32_t ONE = X == FLOAT16 ? 0x6400 * BOTH : 0x4300 * BOTH;  // 1024, 128
  if (BITS == 2) return halves << (14 - at) & 0xC000 * BOTH;
  if (BITS == 8 && X == BFLOAT16)
    return minus<X>(halves >> at & 0x7F * BOTH | ONE, halves >> at & 0x80 * BOTH | ONE);
  constexpr uint32_t MASK = (1u << BITS) - 1, SIGN = 1u << (BITS - 1);
  // 1024 + 8 and 1024 + 128 in float16, 128 + 8 in bfloat16
  constexpr uint32_t OFFSET = (X == BFLOAT16 ? 0x4308 : 0x6400 + SIGN) * BOTH;
  return minus<X>((halves >> at & MASK * BOTH) ^ (zero | ONE | SIGN * BOTH), OFFSET);
}

// Two numbers of float16 by two others.
__device__ inline uint32_t times(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Two 8-bit floats, in the lower or the upper half, as numbers of type X: exactly, NaN too.
template <int X, int CODE>
__device__ uint32_t two_of_fp8(uint32_t codes, bool upper) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(upper ? codes >> 16 : codes);
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(pair, CODE == E4M3 ? __NV_E4M3 : __NV_E5M2);
  if (X == FLOAT16) return reinterpret_cast<const uint32_t&>(halves);
  const float2 wide = __half22float2(halves);
  const __nv_bfloat162 both = __floats2bfloat162_rn(wide.x, wide.y);
  return reinterpret_cast<const uint32_t&>(both);
}

template <class S, bool WIDE = S::X_SIZE == 2>
struct Words {
  uint32_t mine;  // shared address of this lane's words of the warp's first rows, in stage 0
  const uint32_t zero = unknown_zero();
  uint4 words[S::MB];

  __device__ Words(uint32_t base) : mine(base + threadIdx.x % 32 * 16) {}
  __device__ void load(int offset) {
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++)
      words[mb] = load_shared(mine + offset + mb * (S::UNITS * 512));
  }
  // of one step of 32 columns
  __device__ void operands(uint32_t (&a)[1][S::MB][4], int field, int) {
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++) {
      a[0][mb][0] = signed_bytes<S::BITS>(words[mb].x, field, zero);
      a[0][mb][1] = signed_bytes<S::BITS>(words[mb].y, field, zero);
      a[0][mb][2] = signed_bytes<S::BITS>(words[mb].z, field, zero);
      a[0][mb][3] = signed_bytes<S::BITS>(words[mb].w, field, zero);
    }
  }
};

template <class S>
struct Words<S, true> {
  static constexpr bool FP8 = S::CODE != S::BITS;  // two neighbours stay neighbours
  uint32_t mine, bytes;  // `bytes`: which two of either word, for prmt
  const uint32_t zero = unknown_zero();
  uint4 near[S::MB], far[S::MB];
  uint32_t halves[S::MB][4];  // of the rows l / 4 and 8 below, near and far
  uint32_t scales[S::GROUPS][S::MB];  // float16, of those two rows, where operands are scaled

  __device__ Words(uint32_t base) {
    const int lane = threadIdx.x % 32;
    mine = base + (lane / 4 * 4 + lane % 4 / 2) * 16;
    if (FP8) bytes = lane % 2 ? 0x7632 : 0x5410;
    else bytes = lane % 2 ? 0x3726 : 0x1504;
  }
  __device__ void load(int offset) {
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++) {
      near[mb] = load_shared(mine + offset + mb * (S::UNITS * 512));
      far[mb] = load_shared(mine + offset + mb * (S::UNITS * 512) + 32);
    }
  }
  // group: the step's, in the stage
  __device__ void operands(uint32_t (&a)[2][S::MB][4], int field, int group) {
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++) {
      if (field == 0) {
        halves[mb][0] = __byte_perm(near[mb].x, near[mb].z, bytes);
        halves[mb][1] = __byte_perm(near[mb].y, near[mb].w, bytes);
        halves[mb][2] = __byte_perm(far[mb].x, far[mb].z, bytes);
        halves[mb][3] = __byte_perm(far[mb].y, far[mb].w, bytes);
      }
#pragma unroll
      for (int slice = 0; slice < 2; slice++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t& two = a[slice][mb][i];
          if constexpr (FP8)
            two = two_of_fp8<S::X, S::CODE>(halves[mb][i], slice);
          else
            two = two_numbers<S::X, S::BITS>(halves[mb][i], (1 - slice) * 8 + S::BITS * field, zero);
          if constexpr (S::SCALED)
            two = times(two, __byte_perm(scales[group][mb], 0, i % 2 ? 0x3232 : 0x1010));
        }
    }
  }
};
