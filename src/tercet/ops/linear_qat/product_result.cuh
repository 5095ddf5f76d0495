// How sums of product_kernel.cuh become rows of the output.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mbarrier.cuh"
#include "tma.cuh"

constexpr int TILE_M = 128, TILE_N = 256, DEPTH = 128, WARPS = 8;
// A warp turns 16 rows of 128 bytes at once, and the copy engine stores them while it turns the next.
constexpr int TURN_BYTES = 16 * 128, WARP_BYTES = 2 * TURN_BYTES;
constexpr int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2;

struct Result {
  const float *row, *column;  // column may be null
  const void* bias;           // may be null
  void* out;
  int bias_type, type;  // type: of out
  bool one_column;      // column holds one number for all
  bool mapped;          // out is stored by the copy engine
  int m, n;
};

__device__ inline float number(const void* from, int at, int type) {
  if (type == FLOAT32) return __ldg(static_cast<const float*>(from) + at);
  const uint16_t bits = __ldg(static_cast<const uint16_t*>(from) + at);
  return type == BFLOAT16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16)
                          : __half2float(__ushort_as_half(bits));
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

// The numbers of out at 8 columns of a warp's 16 rows: [half][i] is row 8 half + lane / 4, column
// 2 (lane % 4) + i.
struct Eight {
  float of[2][2];
  __device__ Eight(const int* sums, const Result& result, const float (&row)[2], int n) {
    const int at = n + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool inside = at + i < result.n;
      float column = 1.f, bias = 0.f;
      if (result.column)
        column = inside ? __ldg(result.column + (result.one_column ? 0 : at + i)) : 0.f;
      if (result.bias && inside) bias = number(result.bias, at + i, result.bias_type);
#pragma unroll
      for (int half = 0; half < 2; half++)
        of[half][i] = __fmaf_rn(__fmul_rn(static_cast<float>(sums[half * 2 + i]), column),
                                row[half], bias);
    }
  }
};

// 16-bit numbers: 64 columns a turn
template <int TYPE>
__device__ void write_turns(const int (&sums)[128], const Result& result, const float (&row)[2],
                            const CUtensorMap* map, int m, int n, uint32_t turn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int from = 0; from < TILE_N; from += 64) {
    const uint32_t memory = turn + from / 64 % 2 * TURN_BYTES;
    if (lane == 0) tma::wait_for_stores<1>();
    __syncwarp();
#pragma unroll
    for (int c = from; c < from + 64; c += 16) {
      const Eight left(sums + c / 2, result, row, n + c), right(sums + c / 2 + 4, result, row,
                                                                n + c + 8);
      // lanes 8 i .. 8 i + 7 name the rows of matrix i: rows 0 and 8 on, then the next 8 columns
      const int line = lane % 16, piece = ((c - from) / 8 + lane / 16) ^ (line % 8);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                       memory + line * 128 + piece * 16),
                   "r"(two<TYPE>(left.of[0][0], left.of[0][1])),
                   "r"(two<TYPE>(left.of[1][0], left.of[1][1])),
                   "r"(two<TYPE>(right.of[0][0], right.of[0][1])),
                   "r"(two<TYPE>(right.of[1][0], right.of[1][1]))
                   : "memory");
    }
    tma::share();
    __syncwarp();
    if (lane == 0) tma::store(map, memory, n + from, m);
  }
}

// floats: 32 columns a turn
__device__ inline void write_floats(const int (&sums)[128], const Result& result,
                                    const float (&row)[2], const CUtensorMap* map, int m, int n,
                                    uint32_t turn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int from = 0; from < TILE_N; from += 32) {
    const uint32_t memory = turn + from / 32 % 2 * TURN_BYTES;
    if (lane == 0) tma::wait_for_stores<1>();
    __syncwarp();
#pragma unroll
    for (int c = from; c < from + 32; c += 8) {
      const Eight eight(sums + c / 2, result, row, n + c);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int piece = ((c - from) / 4 + lane % 4 / 2) ^ (lane / 4);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                         memory + (half * 8 + lane / 4) * 128 + piece * 16 + lane % 2 * 8),
                     "f"(eight.of[half][0]), "f"(eight.of[half][1])
                     : "memory");
      }
    }
    tma::share();
    __syncwarp();
    if (lane == 0) tma::store(map, memory, n + from, m);
  }
}

// rows that do not begin at multiples of 16 bytes: number by number
__device__ inline void write_singly(const int (&sums)[128], const Result& result,
                                    const float (&row)[2], int m, int n) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < TILE_N; c += 8) {
    const Eight eight(sums + c / 2, result, row, n + c);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at_m = m + i / 2 * 8 + lane / 4, at_n = n + c + lane % 4 * 2 + i % 2;
      if (at_m >= result.m || at_n >= result.n) continue;
      const int64_t at = static_cast<int64_t>(at_m) * result.n + at_n;
      const float value = eight.of[i / 2][i % 2];
      if (result.type == FLOAT32)
        static_cast<float*>(result.out)[at] = value;
      else
        static_cast<uint16_t*>(result.out)[at] =
            result.type == FLOAT16 ? two<FLOAT16>(value, 0.f) : two<BFLOAT16>(value, 0.f);
    }
  }
}

// One warp's rows m .. m + 15 of the columns from n on. `turn` is memory of the warp's own, in which
// pieces of 16 bytes lie as the copy engine's swizzle wants them.
__device__ inline void write(const int (&sums)[128], const Result& result, const CUtensorMap* map,
                             int m, int n, uint8_t* turn) {
  float row[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int at = m + half * 8 + threadIdx.x % 32 / 4;
    row[half] = at < result.m ? __ldg(result.row + at) : 0.f;
  }
  const uint32_t memory = mbarrier::address_of(turn);
  if (!result.mapped)
    write_singly(sums, result, row, m, n);
  else if (result.type == FLOAT32)
    write_floats(sums, result, row, map, m, n, memory);
  else if (result.type == FLOAT16)
    write_turns<FLOAT16>(sums, result, row, map, m, n, memory);
  else
    write_turns<BFLOAT16>(sums, result, row, map, m, n, memory);
}
