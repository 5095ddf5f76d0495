// What one block of prefill.cu computes, and how its shared memory is laid out.
#pragma once
#include <stdint.h>

#include "mbarrier.cuh"

constexpr int THREADS = 384, GROUP_THREADS = 128, WARPS = 8;
constexpr int DEPTH = 128;                    // columns a stage
constexpr int MOST_SHARED = 227 * 1024 - 64;  // dynamic; a few bytes are static

// MB * 128 rows by T tokens. The blocks of a cluster have rows of their own, CLUSTER of them, and
// share the tokens; or they have the same tile and split its columns, SPLIT of them.
template <int BITS_, int GROUP_, int MB_, int T_, int CLUSTER_, int SPLIT_ = 1>
struct Shape {
  static constexpr int BITS = BITS_, GROUP = GROUP_, MB = MB_, T = T_;
  static constexpr int CLUSTER = CLUSTER_, SPLIT = SPLIT_, BLOCKS = CLUSTER * SPLIT;
  static_assert(CLUSTER == 1 || SPLIT == 1);
  static_assert(T % (16 * SPLIT) == 0);
  // what a block writes in the end
  using Own = Shape<BITS, GROUP, MB, T / SPLIT, CLUSTER, 1>;
  static constexpr int ROWS = 2 * MB * 64, UNITS = BITS / 2, STEPS_A_UNIT = 8 / BITS;
  static constexpr int X_BYTES = T * DEPTH, W_BYTES = ROWS * DEPTH / 8 * BITS;
  // A warp turns its rows of TURN tokens into rows of y, and the copy engine stores them while it
  // turns the next; floats, fewer tokens at once, are stored by the warp itself.
  static constexpr int TURN = T < 32 ? T : 32, PITCH = MB * 32, TURN_BYTES = TURN * PITCH;
  static constexpr int WIDE_TURN = 16, WIDE_PITCH = MB * 16 + 4;
  static constexpr int WIDE_BYTES = (WIDE_TURN * WIDE_PITCH * 4 + 511) / 512 * 512;
  static constexpr int WARP_BYTES = 2 * TURN_BYTES > WIDE_BYTES ? 2 * TURN_BYTES : WIDE_BYTES;
  // the ring: as deep as there is room, 1 KiB being left for its barriers and for alignment each
  static constexpr int MEETING_BYTES = (SPLIT - 1) * (MB * T / SPLIT / 2) * 4 * 2 * GROUP_THREADS;
  static constexpr int ROOM = MOST_SHARED - 2048 - WARPS * WARP_BYTES - MEETING_BYTES;
  static constexpr int FIT = ROOM / (X_BYTES + W_BYTES), STAGES = FIT < 16 ? FIT : 16;
  static constexpr int BYTES = MOST_SHARED - ROOM + STAGES * (X_BYTES + W_BYTES);
  // The first group of warps keeps so many stages ahead of the second, so that one of them feeds
  // the tensor cores while the other turns sums into y. It pays where tiles follow each other and
  // take long; elsewhere it would only delay the end.
  static constexpr int AHEAD = T >= 128 ? STAGES / 2 : 1;
  // Steps of 32 columns that are started together: two where tokens are few, for they are short; a
  // group of scales where there is one.
  static constexpr int JOIN = GROUP ? GROUP / 32 : T >= 128 ? 1 : 2;
  static constexpr int GROUPS = GROUP ? DEPTH / GROUP : 1;  // of scales, a stage
};

// The codes at one place of each byte of a word, as the top bits of signed bytes. `zero` is 0 and
// the compiler does not know: where words were operands as they come from memory, ptxas would run
// the products one by one (C7513).
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

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
