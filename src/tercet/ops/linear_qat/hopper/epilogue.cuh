// The epilogue of kernel.cuh: from sums to rows of the output.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernel/device/hopper/mbarrier.cuh"
#include "kernel/device/hopper/tma.cuh"

constexpr int TILE_M = 128, TILE_N = 256, DEPTH = 128, WARPS = 8;
// A warp stages 16 rows of 128 bytes at once, and TMA stores them while it stages the next.
constexpr int EPILOGUE_BYTES = 16 * 128, WARP_BYTES = 2 * EPILOGUE_BYTES;
constexpr int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2;

struct Result {
  const float *row, *column;  // column may be null
  const void* bias;           // may be null
  void* out;
  int bias_type, type;  // type: of out
  bool one_column;      // column holds one number for all
  bool mapped;          // out is stored by TMA
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

// What a tile's sums are multiplied by. Loaded before the mainloop, for else each step of the epilogue would wait
// for memory; factors of columns are exchanged in shared memory, where each of the two warpgroups has
// FACTOR_BYTES of its own.
constexpr int FACTOR_BYTES = TILE_N * 4;
struct Factors {
  float row[2];     // of rows lane / 4 and 8 + lane / 4
  float column[2];  // of columns thread and 128 + thread of the warpgroup
  uint32_t shared;

  __device__ void load(const Result& result, int m, int n) {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int at_m = m + i * 8 + threadIdx.x % 32 / 4, at_n = n + i * 128 + thread;
      row[i] = at_m < result.m ? __ldg(result.row + at_m) : 0.f;
      column[i] = 1.f;
      if (result.column && at_n < result.n)
        column[i] = __ldg(result.column + (result.one_column ? 0 : at_n));
    }
  }
  // By all warps of the warpgroup. `unread`: no warp still reads the previous tile's.
  __device__ void share(int warpgroup, bool unread) const {
    if (!unread) sync(warpgroup);
#pragma unroll
    for (int i = 0; i < 2; i++)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared + threadIdx.x % 128 * 4 + i * 512),
                   "f"(column[i])
                   : "memory");
    sync(warpgroup);
  }
  __device__ static void sync(int warpgroup) {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + warpgroup) : "memory");
  }
};

__device__ inline float2 two_of(uint32_t shared) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared));
  return v;
}

// The numbers of out at 8 columns of a warp's 16 rows, from column c of the tile on: [half][i] is row
// 8 half + lane / 4, column 2 (lane % 4) + i.
struct Eight {
  float of[2][2];
  __device__ Eight(const int (&sums)[128], const Factors& factors, const Result& result, int n,
                   int c) {
    const int at = threadIdx.x % 4 * 2 + c;
    const float2 column = two_of(factors.shared + at * 4);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool biased = result.bias && n + at + i < result.n;
      const float bias = biased ? number(result.bias, n + at + i, result.bias_type) : 0.f;
#pragma unroll
      for (int half = 0; half < 2; half++)
        of[half][i] =
            __fmaf_rn(__fmul_rn(static_cast<float>(sums[c / 2 + half * 2 + i]), i ? column.y : column.x),
                      factors.row[half], bias);
    }
  }
};

// 16-bit numbers: 64 columns at once
template <int TYPE>
__device__ void write_16_bit(const int (&sums)[128], const Factors& factors,
                            const Result& result, const CUtensorMap* map, int m, int n,
                            uint32_t staging, int first, int last) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int from = 0; from < TILE_N; from += 64) {
    if (from < first || from >= last) continue;
    const uint32_t memory = staging + from / 64 % 2 * EPILOGUE_BYTES;
    if (lane == 0) tma::wait_for_stores<1>();
    __syncwarp();
#pragma unroll
    for (int c = from; c < from + 64; c += 16) {
      const Eight left(sums, factors, result, n, c), right(sums, factors, result, n, c + 8);
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

// floats: 32 columns at once
__device__ inline void write_floats(const int (&sums)[128], const Factors& factors,
                                    const Result& result, const CUtensorMap* map, int m, int n,
                                    uint32_t staging, int first, int last) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int from = 0; from < TILE_N; from += 32) {
    if (from < first || from >= last) continue;
    const uint32_t memory = staging + from / 32 % 2 * EPILOGUE_BYTES;
    if (lane == 0) tma::wait_for_stores<1>();
    __syncwarp();
#pragma unroll
    for (int c = from; c < from + 32; c += 8) {
      const Eight eight(sums, factors, result, n, c);
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
__device__ inline void write_singly(const int (&sums)[128], const Factors& factors,
                                    const Result& result, int m, int n, int first, int last) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < TILE_N; c += 8) {
    if (c < first || c >= last) continue;
    const Eight eight(sums, factors, result, n, c);
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

// One warp's rows m .. m + 15 of columns n + first .. n + last, multiples of what is staged at once. `staging` is
// the warp's own shared memory, in which pieces of 16 bytes lie in TMA's swizzle.
__device__ inline void write(const int (&sums)[128], const Factors& factors, const Result& result,
                             const CUtensorMap* map, int m, int n, uint32_t staging, int first,
                             int last) {
  if (!result.mapped)
    write_singly(sums, factors, result, m, n, first, last);
  else if (result.type == FLOAT32)
    write_floats(sums, factors, result, map, m, n, staging, first, last);
  else if (result.type == FLOAT16)
    write_16_bit<FLOAT16>(sums, factors, result, map, m, n, staging, first, last);
  else
    write_16_bit<BFLOAT16>(sums, factors, result, map, m, n, staging, first, last);
}
