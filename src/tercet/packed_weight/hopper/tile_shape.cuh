// What one block computes by wgmma against packed weights, and how its shared memory is laid out.
#pragma once
#include <stdint.h>

#include "kernel/device/hopper/mbarrier.cuh"

constexpr int WARPGROUP_THREADS = 128;
constexpr int DEPTH = 128;                    // columns a stage
constexpr int MOST_SHARED = 227 * 1024 - 64;  // dynamic; a few bytes are static

// numbers as C++ and Python name them to each other; x is of any but float32, or E4M3
constexpr int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3;

// x of float16, and codes times the scales of their groups as W's operand, exactly: ternary ones
constexpr int SCALED_FLOAT16 = 0x200 | FLOAT16;

// What codes are: integers of so many bits, or 8-bit floats: their bits, and which.
constexpr int E4M3 = 0x108, E5M2 = 0x208;

template <int X>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<INT8> {
  using Type = int;
};

// x of type X times W of such codes. WARPGROUPS consumer warpgroups multiply MB * 64 rows each by T tokens.
// The CLUSTER blocks of a cluster have different rows and receive the same tokens by multicast; or its SPLIT
// blocks have the same tile and split its K (split-K). TABLE bytes of shared memory are the kernel's own.
template <int X_, int CODE_, int GROUP_, int MB_, int T_, int CLUSTER_, int SPLIT_ = 1,
          int WARPGROUPS_ = 2, int TABLE = 0>
struct Shape {
  static constexpr int X = X_ & 0x1ff, CODE = CODE_, BITS = CODE & 0xff, GROUP = GROUP_, MB = MB_, T = T_;
  static constexpr int CLUSTER = CLUSTER_, SPLIT = SPLIT_, BLOCKS = CLUSTER * SPLIT;
  static constexpr int WARPGROUPS = WARPGROUPS_;
  // where scales of groups meet codes before the product, and where they meet its sums
  static constexpr bool SCALED = X_ == SCALED_FLOAT16, SCALED_SUMS = GROUP > 0 && !SCALED;
  static_assert(!SCALED || (GROUP > 0 && (CODE == 2 || CODE == 4)));
  static constexpr int WARPS = 4 * WARPGROUPS, THREADS = WARPGROUP_THREADS * (WARPGROUPS + 1);
  // registers of a thread that multiplies
  static constexpr int REGISTERS = (65536 / THREADS / 8 * 8 * (WARPGROUPS + 1) - 24) / WARPGROUPS / 8 * 8;
  static_assert(CLUSTER == 1 || SPLIT == 1);
  static_assert(T % (16 * SPLIT) == 0);
  using Sum = typename SumOf<X>::Type;
  // the part of the tile that a block writes after the split-K reduction
  using Own = Shape<X_, CODE, GROUP, MB, T / SPLIT, CLUSTER, 1, WARPGROUPS, TABLE>;
  static constexpr int X_SIZE = X == INT8 || X == E4M3 ? 1 : 2;  // bytes, and products, 32 columns
  // of a code as it is multiplied: at the top of its byte, or 2.0 for 1 in 2 bits
  static constexpr float UNIT = X == INT8 ? 1.f / (1 << (8 - BITS)) : BITS == 2 ? 0.5f : 1.f;
  static constexpr int ROWS = WARPGROUPS * MB * 64, UNITS = BITS / 2, STEPS_A_UNIT = 8 / BITS;
  static constexpr int GROUPS = GROUP ? DEPTH / GROUP : 1;  // of scales, a stage
  static constexpr int X_BYTES = T * DEPTH * X_SIZE, W_BYTES = ROWS * DEPTH / 8 * BITS;
  static constexpr int SCALE_BYTES = GROUP ? ROWS * GROUPS * (SCALED ? 2 : 4) : 0;  // of the widest
  static constexpr int STAGE_BYTES = X_BYTES + W_BYTES + SCALE_BYTES;
  // Epilogue: a warp transposes its rows of EPILOGUE_TOKENS tokens in shared memory, and TMA stores them
  // while it transposes the next; float32, WIDE_TOKENS at once, is stored by the warp itself.
  static constexpr int EPILOGUE_TOKENS = T % 32 ? 16 : 32, PITCH = MB * 32;
  static constexpr int EPILOGUE_BYTES = EPILOGUE_TOKENS * PITCH;
  static constexpr int WIDE_TOKENS = 16, WIDE_PITCH = MB * 16 + 4;
  static constexpr int WIDE_BYTES = (WIDE_TOKENS * WIDE_PITCH * 4 + 511) / 512 * 512;
  static constexpr int WARP_BYTES = 2 * EPILOGUE_BYTES > WIDE_BYTES ? 2 * EPILOGUE_BYTES : WIDE_BYTES;
  // pipeline stages: as many as there is room for; 1 KiB each is left for barriers and for alignment
  static constexpr int SPLIT_K_BYTES = (SPLIT - 1) * (MB * T / SPLIT / 2) * 4 * WARPGROUPS * WARPGROUP_THREADS;
  static constexpr int ROOM = MOST_SHARED - 2048 - TABLE - WARPS * WARP_BYTES - SPLIT_K_BYTES;
  static constexpr int FIT = ROOM / STAGE_BYTES, STAGES = FIT < 16 ? FIT : 16;
  static constexpr int BYTES = MOST_SHARED - ROOM + STAGES * STAGE_BYTES;
  // The first of two consumer warpgroups keeps so many stages ahead of the second, so that the tensor cores
  // run products of one while the other is in its epilogue (as in ping-pong kernels). It pays where a block
  // computes several long tiles; elsewhere it would only delay the end.
  static constexpr int STAGGER = T >= 128 ? STAGES / 2 : 1;
  // Where sums of int8 x are scaled the stagger counts runs of so many stages.
  static constexpr int RUN = SCALED_SUMS && X == INT8 ? 4 : 1;
  // Steps of 32 columns whose wgmmas are committed together: two where tokens are few, for they are short;
  // where sums are scaled a whole group, or as much of it as there are registers for.
  static constexpr int STEPS_AT_ONCE = SCALED_SUMS ? (X_SIZE == 1 ? GROUP / 32 : 2) : T >= 128 ? 1 : 2;
  // Whether a stage's address goes through a shuffle to a uniform register. With 128 tokens and more the next
  // product would wait for it, except where a lane has two products to run meanwhile.
  static constexpr bool UNIFORM_ADDRESS =
      SCALED_SUMS ? X == INT8 : T < 128 || (X == INT8 && MB == 2 && T == 128 && CLUSTER == 1);
  // Of 32 columns `part` of a step, from the stage's descriptor on: 128 bytes of a token are 4 steps, or 2.
  static __host__ __device__ constexpr int x_offset(int step, int slice) {
    constexpr int STEPS = 4 / X_SIZE;
    return step / STEPS * (T * 8) + step % STEPS * 2 * X_SIZE + slice * 2;
  }
};

template <class S>
using Sums = typename S::Sum[S::MB][S::T / 2];

template <class S>
__device__ void clear(Sums<S>& sums) {
#pragma unroll
  for (int i = 0; i < S::MB * S::T / 2; i++) sums[i / (S::T / 2)][i % (S::T / 2)] = 0;
}

// sums as bits, as they are sent to other blocks
__device__ inline int bits_of(int sum) { return sum; }
__device__ inline int bits_of(float sum) { return __float_as_int(sum); }
__device__ inline void add_bits(int& sum, int bits) { sum += bits; }
__device__ inline void add_bits(float& sum, int bits) { sum += __int_as_float(bits); }

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ inline void sync_named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
