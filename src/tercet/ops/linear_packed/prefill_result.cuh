// From sums to y: scales, bias and residual in float32, then one rounding to the type of y.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "prefill_shape.cuh"

constexpr int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2;

struct Result {
  const void *w_scale, *bias, *residual;
  const float* x_scale;
  void* y;
  int w_scale_type, bias_type, type;  // type: of y and of the residual
  int tokens, rows, groups;
};

__device__ inline float number(uint32_t bits, int type) {
  if (type == FLOAT32) return __uint_as_float(bits);
  return type == BFLOAT16 ? __uint_as_float(bits << 16)
                          : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

// The bits of COUNT numbers at places of its own each; a place below 0 has none, which is 0. Loads
// start together, and nobody waits for them here.
template <int COUNT>
__device__ void load_bits(uint32_t (&bits)[COUNT], const void* from, int type,
                          const int64_t (&places)[COUNT]) {
  if (type == FLOAT32) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      bits[i] = places[i] < 0 ? 0 : __ldg(static_cast<const uint32_t*>(from) + places[i]);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      bits[i] = places[i] < 0 ? 0 : __ldg(static_cast<const uint16_t*>(from) + places[i]);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(bits[i]));
}

__device__ inline uint32_t two(float low, float high, int type) {
  uint32_t both;
  if (type == FLOAT16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// Scales of a lane's rows in GROUPS groups from `group` on; 0 beyond the rows and groups.
template <class S>
struct WeightScales {
  uint32_t bits[S::GROUPS * S::MB * 2];
  __device__ void load(const Result& result, int row0, int group) {
    int64_t places[S::GROUPS * S::MB * 2];
#pragma unroll
    for (int i = 0; i < S::GROUPS * S::MB * 2; i++) {
      const int row = row0 + i / 2 % S::MB * 16 + i % 2 * 8 + threadIdx.x % 32 / 4;
      const int g = group + i / (S::MB * 2);
      const bool inside = row < result.rows && g < result.groups;
      places[i] = inside ? (static_cast<int64_t>(row / 16) * result.groups + g) * 16 + row % 16 : -1;
    }
    load_bits(bits, result.w_scale, result.w_scale_type, places);
  }
  // times what the place of codes in their bytes divides by
  __device__ float of(const Result& result, int group, int mb, int half) const {
    return __fmul_rn(number(bits[(group * S::MB + mb) * 2 + half], result.w_scale_type),
                     1.f / (1 << (8 - S::BITS)));
  }
};

// What turns a lane's sums into y, loaded before there are sums.
template <class S>
struct Factors {
  WeightScales<S> w_scale;  // where a row has one
  uint32_t bias[S::MB * 2];
  float x_scale[(S::T + 31) / 32];  // of token 32 i + lane

  __device__ void load(const Result& result, int token0, int row0) {
    const int lane = threadIdx.x % 32;
    if constexpr (S::GROUP == 0) w_scale.load(result, row0, 0);
    int64_t places[S::MB * 2];
#pragma unroll
    for (int i = 0; i < S::MB * 2; i++) {
      const int row = row0 + i / 2 * 16 + i % 2 * 8 + lane / 4;
      places[i] = row < result.rows && result.bias ? row : -1;
    }
    load_bits(bias, result.bias, result.bias_type, places);
#pragma unroll
    for (int i = 0; i < (S::T + 31) / 32; i++) {
      const int token = token0 + 32 * i + lane;
      x_scale[i] = token < result.tokens ? __ldg(result.x_scale + token) : 0.f;
      asm volatile("" : "+f"(x_scale[i]));
    }
  }
  // token: within the tile; 32 of them, from a multiple of 16 on, share a compile-time register
  __device__ float of_token(int from, int token) const {
    return __shfl_sync(~0u, x_scale[from / 32], (from + token) % 32);
  }
};

// One warp's 16 MB rows of T tokens to y. `turn` is memory of its own.
template <class S, typename Sum>
__device__ void write(const Sum (&sums)[S::MB][S::T / 2], const Factors<S>& factors,
                      const Result& result, int token0, int row0, uint8_t* turn) {
  const int lane = threadIdx.x % 32;
  const int64_t pitch = result.rows;
  float w_scale[S::MB][2], bias[S::MB][2];
#pragma unroll
  for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      w_scale[mb][h] = S::GROUP ? 1.f : factors.w_scale.of(result, 0, mb, h);
      bias[mb][h] = number(factors.bias[mb * 2 + h], result.bias_type);
    }
  const auto value = [&](int mb, int i, float x_scale) {
    const int h = i / 2 % 2;
    const float sum =
        S::GROUP ? sums[mb][i] : __fmul_rn(static_cast<float>(sums[mb][i]), w_scale[mb][h]);
    const float y = __fmul_rn(sum, x_scale);
    return result.bias ? __fadd_rn(y, bias[mb][h]) : y;
  };

  if (result.type != FLOAT32 && !result.residual) {
    constexpr int LANES = S::MB * 2, AT_ONCE = 32 / LANES;  // lanes a token
#pragma unroll
    for (int from = 0; from < S::T; from += S::TURN) {
      __syncwarp();
#pragma unroll
      for (int t = 0; t < S::TURN; t += 16) {
        float x_scale[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
          x_scale[i] = factors.of_token(from + t, i / 2 * 8 + lane % 4 * 2 + i % 2);
#pragma unroll
        for (int mb = 0; mb < S::MB; mb++) {
          uint32_t v[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int at = (from + t) / 2 + i * 2;
            v[i] = two(value(mb, at, x_scale[i / 2 * 2]), value(mb, at + 1, x_scale[i / 2 * 2 + 1]),
                       result.type);
          }
          const int token = t + lane / 16 * 8 + lane % 8;
          const uint32_t to =
              mbarrier::address_of(turn) + token * S::PITCH + mb * 32 + lane / 8 % 2 * 16;
          asm volatile(
              "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to),
              "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
              : "memory");
        }
      }
      __syncwarp();
#pragma unroll
      for (int t = 0; t < S::TURN; t += AT_ONCE) {
        const int in_turn = t + lane / LANES, token = token0 + from + in_turn;
        const int row = row0 + lane % LANES * 8;
        if (token >= result.tokens || row >= result.rows) continue;
        const uint4 v =
            load_shared(mbarrier::address_of(turn) + in_turn * S::PITCH + lane % LANES * 16);
        uint16_t* y = static_cast<uint16_t*>(result.y) + token * pitch + row;
        if (pitch % 8 == 0) {
          *reinterpret_cast<uint4*>(y) = v;
        } else {
          const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int i = 0; i < 8; i++)
            if (row + i < result.rows) y[i] = words[i / 2] >> (i % 2 * 16);
        }
      }
    }
    return;
  }

  constexpr int LANES = S::MB * 4, AT_ONCE = 32 / LANES;
  float* wide = reinterpret_cast<float*>(turn);
#pragma unroll
  for (int from = 0; from < S::T; from += S::WIDE_TURN) {
    __syncwarp();
    float x_scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      x_scale[i] = factors.of_token(from, i / 2 * 8 + lane % 4 * 2 + i % 2);
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        wide[token * S::WIDE_PITCH + mb * 16 + i / 2 % 2 * 8 + lane / 4] =
            value(mb, from / 2 + i, x_scale[i / 4 * 2 + i % 2]);
      }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < S::WIDE_TURN; t += AT_ONCE) {
      const int in_turn = t + lane / LANES, token = token0 + from + in_turn;
      const int row = row0 + lane % LANES * 4;
      if (token >= result.tokens) continue;
      const float4 v =
          *reinterpret_cast<float4*>(wide + in_turn * S::WIDE_PITCH + lane % LANES * 4);
      const float values[4] = {v.x, v.y, v.z, v.w};
      const int64_t at = token * pitch + row;
      int64_t places[4];
      uint32_t residual[4];
#pragma unroll
      for (int i = 0; i < 4; i++) places[i] = row + i < result.rows && result.residual ? at + i : -1;
      load_bits(residual, result.residual, result.type, places);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (row + i >= result.rows) continue;
        float y = values[i];
        if (result.residual) y = __fadd_rn(y, number(residual[i], result.type));
        if (result.type == FLOAT32)
          static_cast<float*>(result.y)[at + i] = y;
        else
          static_cast<uint16_t*>(result.y)[at + i] = two(y, 0.f, result.type);
      }
    }
  }
}
