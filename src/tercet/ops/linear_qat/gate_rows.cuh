// The gradients of silu(gate) * up, [M, N] each, the codes of their rows times their columns' factors,
// and on the way the largest of each column times its row's: one pass over grad, gate and up. Blocks
// walk over rows, which the copy engine brings.
#pragma once
#include "gradient_rows.cuh"

constexpr int GATE_VECTORS = 2;  // of 16 bytes a lane

struct Gate {
  const void *grad, *gate, *up;
  int64_t grad_pitch, gate_pitch, up_pitch;  // bytes from row to row, multiples of 16
  int m, n;                                  // n is a multiple of 8
};

// what columns are scaled with, N or one for all
struct Factors {
  const float *gate, *up;
  int one_gate, one_up;
};

struct GateResult {
  uint4 *to_gate, *to_up;  // [M, N] in the inputs' type
  int8_t *gate_codes, *up_codes;
  float *gate_scales, *up_scales;
  float* tops;  // [blocks, 2, N], null where nobody asks
};

template <int TYPE>
__device__ inline uint32_t two_rounded(float low, float high) {
  if constexpr (TYPE == BFLOAT16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(two);
  } else {
    const __half2 two = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(two);
  }
}

template <int TYPE>
__device__ inline Vector<TYPE> rounded(const float (&x)[8]) {
  return {make_uint4(two_rounded<TYPE>(x[0], x[1]), two_rounded<TYPE>(x[2], x[3]),
                     two_rounded<TYPE>(x[4], x[5]), two_rounded<TYPE>(x[6], x[7]))};
}

// 1 / (1 + exp(-x)), off by a few units in the last place
__device__ inline float sigmoid(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.f + power));
  return inverse;
}

// One of the two gradients as a lane holds it: its numbers times their factors, and their codes.
struct Side {
  float h[GATE_VECTORS][8], top[GATE_VECTORS][8], most;
  template <int TYPE>
  __device__ void take(int i, const Vector<TYPE>& x, const float* by, int one, int n, float row) {
    float factor[8];
    if (one) {
      const float all = __ldg(by);
#pragma unroll
      for (int e = 0; e < 8; e++) factor[e] = all;
    } else {
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const float4 four = __ldg(reinterpret_cast<const float4*>(by + n) + part);
        factor[part * 4] = four.x;
        factor[part * 4 + 1] = four.y;
        factor[part * 4 + 2] = four.z;
        factor[part * 4 + 3] = four.w;
      }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
      h[i][e] = __fmul_rn(x[e], factor[e]);
      most = larger(most, h[i][e]);
      top[i][e] = larger(top[i][e], __fmul_rn(x[e], row));
    }
  }
  __device__ void code(int i, const Divisor& divisor, int8_t* to) const {
    uint32_t codes[8];
    nearest_codes(codes, h[i], divisor, divisor.plain());
    *reinterpret_cast<uint2*>(to) = make_uint2(four_bytes(codes[0], codes[1], codes[2], codes[3]),
                                               four_bytes(codes[4], codes[5], codes[6], codes[7]));
  }
  __device__ void write_tops(int i, float* to) const {
    reinterpret_cast<float4*>(to)[0] = make_float4(top[i][0], top[i][1], top[i][2], top[i][3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(top[i][4], top[i][5], top[i][6], top[i][7]);
  }
};

template <int TYPE>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1)
    gate_rows(const Gate gate, const Factors by, const float* row, const GateResult to, int stages) {
  using Stream = row_stream::WarpShare<GATE_VECTORS>;
  constexpr int BARRIERS = row_stream::MAX_WARPS * row_stream::MAX_STAGES;
  __shared__ int maxima[2][2][row_stream::MAX_WARPS];
  __shared__ uint64_t barriers[3][BARRIERS];
  extern __shared__ uint4 slots[];
  const int thread = threadIdx.x, lane = thread % 32, units = gate.n / 8;
  for (int i = thread; i < 4 * row_stream::MAX_WARPS; i += blockDim.x) (&maxima[0][0][0])[i] = 0;
  const int room = blockDim.x * GATE_VECTORS * stages;
  Stream grads(gate.grad, gate.grad_pitch, gate.m, units, stages, slots, barriers[0]);
  Stream gates(gate.gate, gate.gate_pitch, gate.m, units, stages, slots + room, barriers[1]);
  Stream ups(gate.up, gate.up_pitch, gate.m, units, stages, slots + 2 * room, barriers[2]);
  Side of_gate, of_up;
#pragma unroll
  for (int i = 0; i < GATE_VECTORS; i++)
#pragma unroll
    for (int e = 0; e < 8; e++) of_gate.top[i][e] = of_up.top[i][e] = 0.f;
  __syncthreads();
  int turn = 0;
  for (int m = blockIdx.x; m < gate.m; m += gridDim.x, turn ^= 1) {
    const float row_now = to.tops ? __ldg(row + m) : 0.f;
    uint4 grad[GATE_VECTORS], gated[GATE_VECTORS], up[GATE_VECTORS];
    grads.take(grad);
    gates.take(gated);
    ups.take(up);
    grads.taken();
    gates.taken();
    ups.taken();
    of_gate.most = of_up.most = 0.f;
#pragma unroll
    for (int i = 0; i < GATE_VECTORS; i++) {
      const Vector<TYPE> d = {grad[i]}, g = {gated[i]}, u = {up[i]};
      float to_gate[8], to_up[8];
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const float part = sigmoid(g[e]), scaled = g[e] * part;
        to_up[e] = d[e] * scaled;
        to_gate[e] = d[e] * u[e] * (part + scaled * (1.f - part));
      }
      const Vector<TYPE> gate_now = rounded<TYPE>(to_gate), up_now = rounded<TYPE>(to_up);
      // beyond the row all is 0; factors are those of the first columns
      const int unit = grads.inside(i) ? grads.unit(i) : 0;
      of_gate.take(i, gate_now, by.gate, by.one_gate, unit * 8, row_now);
      of_up.take(i, up_now, by.up, by.one_up, unit * 8, row_now);
      if (grads.inside(i)) {
        to.to_gate[static_cast<int64_t>(m) * units + unit] = gate_now.words;
        to.to_up[static_cast<int64_t>(m) * units + unit] = up_now.words;
      }
    }
    const int most_gate = __reduce_max_sync(~0u, __float_as_int(of_gate.most));
    const int most_up = __reduce_max_sync(~0u, __float_as_int(of_up.most));
    if (lane == 0) {
      maxima[turn][0][thread / 32] = most_gate;
      maxima[turn][1][thread / 32] = most_up;
    }
    __syncthreads();
    const float gate_scale =
        __fdiv_rn(__int_as_float(__reduce_max_sync(~0u, maxima[turn][0][lane])), 127.f);
    const float up_scale =
        __fdiv_rn(__int_as_float(__reduce_max_sync(~0u, maxima[turn][1][lane])), 127.f);
    if (thread == 0) {
      to.gate_scales[m] = gate_scale;
      to.up_scales[m] = up_scale;
    }
    const Divisor by_gate(gate_scale), by_up(up_scale);
#pragma unroll
    for (int i = 0; i < GATE_VECTORS; i++) {
      if (!grads.inside(i)) continue;
      const int64_t at = static_cast<int64_t>(m) * gate.n + grads.unit(i) * 8;
      of_gate.code(i, by_gate, to.gate_codes + at);
      of_up.code(i, by_up, to.up_codes + at);
    }
  }
  if (!to.tops) return;
  float* const mine = to.tops + static_cast<int64_t>(blockIdx.x) * 2 * gate.n;
#pragma unroll
  for (int i = 0; i < GATE_VECTORS; i++) {
    if (!grads.inside(i)) continue;
    of_gate.write_tops(i, mine + grads.unit(i) * 8);
    of_up.write_tops(i, mine + gate.n + grads.unit(i) * 8);
  }
}
