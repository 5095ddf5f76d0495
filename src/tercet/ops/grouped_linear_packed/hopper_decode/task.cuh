// The arguments of a launch (task.py mirrors them), and the tile of a block.
#pragma once
#include "packed_weight/hopper/ptx.cuh"

struct Task {
  const uint4* codes;      // [experts * blocks, units, 32]
  const void* scale;       // [experts * blocks, 1, 16]
  const int* offsets;      // [experts + 1]
  const void* x;           // [T, K], rows x_pitch bytes apart, multiples of 16
  const float* x_scale;    // [T] or null
  const float* row_weight; // [T] or null
  const void* bias;        // [experts, N] or null
  void* y;                 // [T, N]
  int64_t x_pitch;
  int count, experts, n, k; // count: T
  int blocks, units;       // of 16 rows of an expert's W; of a block
  int scale_type, bias_type, y_type;
  float factor;            // sums are products times 1 / factor
};

// How the product is tiled: rows of x that a block takes, up to 8, or 32 or 48; how many such tiles the rows can
// make at most. Of up to 8 rows: row-blocks of W a block, 0 if the device is to choose; blocks that run at
// once, and the shared memory that a block takes at least so that no more do; bytes of some row-blocks that
// are asked for ahead.
struct Cut {
  int bits, rows, most_tiles, slice_blocks, slots, shared, ahead;
};

struct Tile {
  int expert, first, rows, slice;  // first row of x, how many, which rows of W
};
