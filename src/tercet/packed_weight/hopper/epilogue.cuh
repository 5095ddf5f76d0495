// The epilogue, from sums to y: scales, bias and residual in float32, then one rounding to the type of y.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tile_shape.cuh"
#include "kernel/device/hopper/tma.cuh"

struct Result {
  const void *w_scale, *bias, *residual;
  const float* x_scale;  // null: of ones
  void* y;
  int w_scale_type, bias_type, type;  // type: of y and of the residual
  bool mapped;                        // y is stored by TMA
  int tokens, rows, groups;
};

__device__ inline float number(uint32_t bits, int type) {
  if (type == FLOAT32) return __uint_as_float(bits);
  return type == BFLOAT16 ? __uint_as_float(bits << 16)
                          : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

// The bits of COUNT numbers at `indices`; an index below 0 gives 0. All loads start together, and
// this function does not wait for them.
template <int COUNT>
__device__ void load_bits(uint32_t (&bits)[COUNT], const void* from, int type,
                          const int64_t (&indices)[COUNT]) {
  if (type == FLOAT32) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      bits[i] = indices[i] < 0 ? 0 : __ldg(static_cast<const uint32_t*>(from) + indices[i]);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      bits[i] = indices[i] < 0 ? 0 : __ldg(static_cast<const uint16_t*>(from) + indices[i]);
  }
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(bits[i]));
}

template <int TYPE>
__device__ uint32_t two(float low, float high) {
  uint32_t both;
  if (TYPE == FLOAT16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// Scales and bias of a lane's sums, loaded before the mainloop ends.
template <class S>
struct Factors {
  uint32_t w_scale[S::MB * 2], bias[S::MB * 2];  // w_scale: where a row has one
  float x_scale[(S::T + 31) / 32];  // of token 32 i + lane
  float weight[(S::T + 31) / 32];   // likewise, what y is multiplied by, where it is

  __device__ void load(const Result& result, int token0, int row0) {
    const int lane = threadIdx.x % 32;
    int64_t scaled[S::MB * 2], biased[S::MB * 2];
#pragma unroll
    for (int i = 0; i < S::MB * 2; i++) {
      const int row = row0 + i / 2 * 16 + i % 2 * 8 + lane / 4;
      scaled[i] = row < result.rows ? row : -1;
      biased[i] = row < result.rows && result.bias ? row : -1;
    }
    if constexpr (S::GROUP == 0) load_bits(w_scale, result.w_scale, result.w_scale_type, scaled);
    load_bits(bias, result.bias, result.bias_type, biased);
#pragma unroll
    for (int i = 0; i < (S::T + 31) / 32; i++) {
      const int token = token0 + 32 * i + lane;
      const bool inside = token < result.tokens;
      x_scale[i] = !inside ? 0.f : result.x_scale ? __ldg(result.x_scale + token) : 1.f;
      if (S::SCALED) x_scale[i] *= S::UNIT;  // no other factor of y is left
      asm volatile("" : "+f"(x_scale[i]));
    }
  }
  // token: within the tile; 32 tokens, from a multiple of 16 on, are in one compile-time register
  __device__ float of_token(int from, int token) const {
    return __shfl_sync(~0u, x_scale[from / 32], (from + token) % 32);
  }
  __device__ float weight_of(int from, int token) const {
    return __shfl_sync(~0u, weight[from / 32], (from + token) % 32);
  }
};

// The same as numbers, after the mainloop. Pinned: the compiler would convert them again each time.
template <class S>
struct Values {
  float w_scale[S::MB][2], bias[S::MB][2];
  const Factors<S>& factors;
  __device__ Values(const Factors<S>& factors, const Result& result) : factors(factors) {
#pragma unroll
    for (int i = 0; i < S::MB * 2; i++) {
      w_scale[i / 2][i % 2] =
          S::GROUP ? 1.f : __fmul_rn(number(factors.w_scale[i], result.w_scale_type), S::UNIT);
      bias[i / 2][i % 2] = number(factors.bias[i], result.bias_type);
      asm volatile("" : "+f"(w_scale[i / 2][i % 2]), "+f"(bias[i / 2][i % 2]));
    }
  }
  // sum * w_scale * x_scale + bias, of sums whose groups are not scaled yet
  template <typename Sum>
  __device__ float of(Sum sum, int mb, int half, float x_scale) const {
    const float scaled =
        S::GROUP ? sum : __fmul_rn(static_cast<float>(sum), w_scale[mb][half]);
    return __fmaf_rn(scaled, x_scale, bias[mb][half]);
  }
};

// One warp's 16 MB rows of EPILOGUE_TOKENS tokens from token `from` on, as numbers of 16 bits, transposed to
// the warp's own `memory`: 16-byte pieces in TMA's swizzle.
template <class S>
__device__ int swizzled_offset(int token, int piece) {
  const int swizzle = S::MB == 2 ? token / 2 % 4 : token / 4 % 2;
  return token * S::PITCH + (piece ^ swizzle) * 16;
}
template <class S, int TYPE, bool WEIGHTED, typename Sum>
__device__ void transpose_sums(const Sum (&sums)[S::MB][S::T / 2], const Values<S>& values, int from,
                          uint32_t memory) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < S::EPILOGUE_TOKENS; t += 16) {
    float x_scale[4], weight[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
      x_scale[i] = values.factors.of_token(from + t, token);
      if (WEIGHTED) weight[i] = values.factors.weight_of(from + t, token);
    }
    const auto value = [&](Sum sum, int mb, int half, int i) {
      const float y = values.of(sum, mb, half, x_scale[i]);
      return WEIGHTED ? __fmul_rn(y, weight[i]) : y;
    };
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++) {
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = (from + t) / 2 + i * 2, token = i / 2 * 2;
        v[i] = two<TYPE>(value(sums[mb][at], mb, i % 2, token),
                         value(sums[mb][at + 1], mb, i % 2, token + 1));
      }
      asm volatile(
          "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
              memory + swizzled_offset<S>(t + lane / 16 * 8 + lane % 8, mb * 2 + lane / 8 % 2)),
          "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
          : "memory");
    }
  }
}

// One warp's 16 MB rows of T tokens to 16-bit y without residual, by TMA. `staging` is the warp's own shared
// memory.
template <class S, int TYPE, typename Sum>
__device__ void write_by_tma(const Sum (&sums)[S::MB][S::T / 2], const Values<S>& values,
                            const CUtensorMap* y_map, int token0, int row0, uint32_t staging) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int from = 0; from < S::T; from += S::EPILOGUE_TOKENS) {
    const uint32_t memory = staging + from / S::EPILOGUE_TOKENS % 2 * S::EPILOGUE_BYTES;
    if (lane == 0) tma::wait_for_stores<1>();
    __syncwarp();
    transpose_sums<S, TYPE, false>(sums, values, from, memory);
    tma::share();
    __syncwarp();
    if (lane == 0) tma::store(y_map, memory, row0, token0 + from);
  }
}

// likewise to any y, by the warp itself
template <class S, typename Sum>
__device__ void write_wide(const Sum (&sums)[S::MB][S::T / 2], const Values<S>& values,
                           const Result& result, int token0, int row0, float* wide) {
  constexpr int LANES = S::MB * 4, AT_ONCE = 32 / LANES;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int from = 0; from < S::T; from += S::WIDE_TOKENS) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, half = i / 2 % 2;
      const float x_scale = values.factors.of_token(from, token);
#pragma unroll
      for (int mb = 0; mb < S::MB; mb++)
        wide[token * S::WIDE_PITCH + mb * 16 + half * 8 + lane / 4] =
            values.of(sums[mb][from / 2 + i], mb, half, x_scale);
    }
    __syncwarp();
#pragma unroll 1
    for (int t = lane / LANES; t < S::WIDE_TOKENS; t += AT_ONCE) {
      const int token = token0 + from + t, row = row0 + lane % LANES * 4;
      if (token >= result.tokens) continue;
      const float4 four = *reinterpret_cast<float4*>(wide + t * S::WIDE_PITCH + lane % LANES * 4);
      const float wide_y[4] = {four.x, four.y, four.z, four.w};
      int64_t indices[4];
      uint32_t residual[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        indices[i] = row + i < result.rows ? static_cast<int64_t>(token) * result.rows + row + i : -1;
      if (result.residual) load_bits(residual, result.residual, result.type, indices);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (indices[i] < 0) continue;
        float y = wide_y[i];
        if (result.residual) y = __fadd_rn(y, number(residual[i], result.type));
        if (result.type == FLOAT32)
          static_cast<float*>(result.y)[indices[i]] = y;
        else
          static_cast<uint16_t*>(result.y)[indices[i]] =
              result.type == FLOAT16 ? two<FLOAT16>(y, 0.f) : two<BFLOAT16>(y, 0.f);
      }
    }
  }
}

template <class S, typename Sum>
__device__ void write(const Sum (&sums)[S::MB][S::T / 2], const Factors<S>& factors,
                      const Result& result, const CUtensorMap* y_map, int token0, int row0,
                      uint8_t* staging) {
  const uint32_t memory = mbarrier::address_of(staging);
  const Values<S> values(factors, result);
  if (!result.mapped)
    write_wide<S>(sums, values, result, token0, row0, reinterpret_cast<float*>(staging));
  else if (result.type == FLOAT16)
    write_by_tma<S, FLOAT16>(sums, values, y_map, token0, row0, memory);
  else
    write_by_tma<S, BFLOAT16>(sums, values, y_map, token0, row0, memory);
}
