// What a launch of decode.cuh is told, and where things lie in its shared memory. cuda_decode.py and
// decode_plan.py mirror both.
#pragma once
#include "decode_machine.cuh"

struct Task {
  const uint4* codes;       // [row_blocks, units, 32]
  const void* scale;        // [row_blocks, groups, 16]
  const void* zero;         // likewise, of scale's type, or null
  const void* x;            // [M, K], rows x_pitch elements apart
  const float* x_scale;     // [M] or null
  const void* bias;         // [N] or null
  const void* residual;     // [M, N], rows residual_pitch elements apart, or null
  void* y;                  // [M, N]
  int64_t x_pitch, residual_pitch;
  int m, n, k;
  int units, groups;
  int group_steps_log2;     // a group is 32 * 2^this columns
  int scale_type, x_type, bias_type, residual_type, y_type;
  int rows_each, rows_more; // row-blocks of a block; of the first rows_more blocks one more
  int warp_units;           // units of a row-block that a warp takes
  int stages, stage_bytes;  // of a warp's ring
  int early;                // stages to ask for before the kernel ahead has ended
  int dependent;            // whether it may still run
  int rehearse;             // whether to run the code once for nothing while the weights come
  float factor;             // sums are products times 1 / factor
};

// where things lie in shared memory, in bytes
struct Places {
  static constexpr int ROWS_SCALE = 0, SCALES_BARRIER = 64, BARRIERS = 72, RING = 2048;
  static constexpr int SLOT_PITCH = 20;  // words from one row of x to the next: no bank conflicts
  int row_stride, x, scales, slots, x_sums, end;
  __host__ __device__ Places(const Task& task, int warps, int row_bytes, int sum_bytes,
                             bool shared_slots) {
    row_stride = row_bytes + 16;
    x = RING + warps * task.stages * task.stage_bytes;
    const int rows = task.rows_each + (task.rows_more > 0);
    scales = x + warps * task.m * row_stride;
    slots = scales + rows * 64;
    x_sums = slots + rows * (shared_slots ? 1 : warps) * task.m * SLOT_PITCH * 4;
    end = x_sums + warps * sum_bytes;
  }
};

// what scales belong to: whole rows of W, groups of columns, or groups that have zero points too
enum Scales { OF_ROWS, OF_GROUPS, WITH_ZEROS };
