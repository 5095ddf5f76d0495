// The arguments of a launch of kernel.cuh. launch.py mirrors it.
#pragma once
#include <vector_types.h>
#include <stdint.h>

// of codes: what row [p, g, s] has begins at element p * this->p + ... of `first`; null where keys and values are no
// codes. A float32 of 8 bits; step and least of each group of 4, bfloat16.
struct Scales {
  const void* first;
  int64_t p, g, s;
};

struct Task {
  const void* q;        // [B, Q, H, D], rows of D at multiples of 16 bytes, as those of keys and values
  const void* keys;     // [P, G, S, D], or their codes
  const void* values;   // likewise
  const int* blocks;    // [B, T]
  const int* lengths;   // [B]
  void* y;              // [B, Q, H, D], contiguous
  float2* sums;         // of each split: [splits, B, Q, H, D / 2]
  float2* states;       // [splits, B, Q, H]: a row's maximum, and the sum of its shares
  Scales key_scales, value_scales;  // [P, G, S], or [P, G, S, 2 C]
  int64_t q_b, q_q, q_h, k_p, k_g, k_s, v_p, v_g, v_s, blocks_b;  // strides in elements
  int batch, fresh, groups, shared, width;  // B, Q, G, H / G, D: 64 or 128
  int count, block, table;                  // P, S, a multiple of 16, T
  int window;           // positions that a query sees; 0: all
  int tile_rows, row_tiles;  // 8 or 16, and tiles of so many: the queries of a key head, Q H / G
  int warps;            // of a block, 4 or 8
  int together;         // blocks side by side on a multiprocessor: 2 or 4 of 4 warps, 1 of 8
  int blocks_log2;      // of the blocks of a cluster, which share the positions of a row tile
  int splits;           // clusters that share them, whose sums are merged
  unsigned shared_inverse;  // 2^20 / shared, rounded up
  int half;             // float16, else bfloat16
  int pdl;              // programmatic dependent launch: the previous kernel may still run
  float scale, soft_cap;
};
