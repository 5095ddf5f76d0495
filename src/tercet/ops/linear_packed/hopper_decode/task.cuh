// The arguments of a launch of kernel.cuh, and the layout of its shared memory. task.py mirrors both, plan.py
// computes with them.
#pragma once
#include "packed_weight/hopper/ptx.cuh"

// the layout of shared memory, in bytes
struct SharedMemory {
  static constexpr int ROWS_SCALE = 0, BARRIER = 64, SCALES = 128;
  static constexpr int SLOT_PITCH = 20;  // words from one row of x to the next: no bank conflicts
  int x, row_stride, slots, x_sums;
  int scales;  // of groups, with zero points, for each warp
  int end;
};

struct Task {
  const uint4* codes;       // [row_blocks, units, 32]
  const void* scale;        // [row_blocks, groups, 16]
  const void* zero;         // likewise, of a type of its own, or null
  const void* x;            // [M, K], rows x_pitch elements apart
  const float* x_scale;     // [M] or null
  const void* bias;         // [N] or null
  const void* residual;     // [M, N], rows residual_pitch elements apart, or null
  void* y;                  // [M, N]
  int64_t x_pitch, residual_pitch;
  int m, n, k;
  int units, groups;
  int group_steps_log2;     // a group is 32 * 2^this columns
  int scale_type, zero_type, x_type, bias_type, residual_type, y_type;
  int warp_units;           // units of a row-block that a warp takes, a multiple of a piece
  int warps_all;            // warps of a cluster along K that have units
  int rows_each, rows_more; // row-blocks of a cluster; of the first rows_more clusters one more
  int rows_most;            // and so of any
  unsigned rows_inverse;    // 2^23 over that, rounded up
  int pdl;                  // programmatic dependent launch: the previous kernel may still run
  int multicast;            // blocks that receive the same x by TMA multicast; 0: threads copy it
  float factor;             // sums are products times 1 / factor
  SharedMemory shared;
};

// Grid: cluster y, block x of a cluster; they split K. Threads: lane x of a warp; warps y of a block
// split its part of K, warps z take row-blocks round robin.
struct Launch {
  int bits, clusters, cluster_size, warps_k, warps_n, multicast;
  int digits;  // whether floats are multiplied as int8 digits: up to two tokens, no zero points
};

// what scales belong to: whole rows of W; groups of whole units of columns; of two steps of four; of
// single steps; or groups that have zero points too, of any size
enum Scales { OF_ROWS, OF_UNITS, OF_PAIRS, OF_STEPS, WITH_ZEROS };
