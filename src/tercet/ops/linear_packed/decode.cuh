// y[M, N] = x[M, K] W[N, K]^T for M up to 64, W in the layout "fragments": bound by reading W.
//
// A block takes a run of row-blocks (16 rows of W each) that lies in one piece in memory, and its warps
// share the run's units evenly: a team of `team` warps takes a contiguous range, its members every
// team-th unit. Each lane keeps DEPTH loads of 16 bytes in flight. At the end of a row-block a warp
// leaves its sums in a slot of its own in shared memory; after one barrier all threads add the slots
// of their outputs in a fixed order, apply the scales and store. A cluster of blocks may split K.
//
// Weights and scales do not depend on the kernel before, so with programmatic dependent launch they are
// on their way while that kernel still runs; x is read after it.
#pragma once
#include <type_traits>

#include "decode_rows.cuh"
#include "decode_unit.cuh"

struct Task {
  const uint4* codes;       // [row_blocks, units, 32]
  const void* scale;        // [row_blocks, groups, 16]
  const void* x;            // [M, K], rows x_pitch elements apart
  const float* x_scale;     // [M] or null
  const void* bias;         // [N] or null
  const void* residual;     // [M, N] or null
  void* y;                  // [M, N]
  int64_t x_pitch;
  int m, n, k;
  int row_blocks, units, groups;
  int group_steps_log2;     // a group is 32 * 2^this columns
  int scale_type, x_type, bias_type, residual_type, y_type;
  int team, ranks;          // warps a team; blocks a cluster
  float factor;             // sums are products times 1 / factor
};

// where things lie in shared memory, in bytes; the host computes the same
struct Places {
  static constexpr int ROWS_SCALE = 0, X = 256;  // the same in every block of a cluster
  int row_stride, slots, scales, end;
  __host__ __device__ Places(int rows_of_x, int row_bytes, int row_blocks, int warps, int team,
                             int tiles, int groups, int scale_bytes) {
    row_stride = row_bytes + 16;
    // where a cluster splits K, sums take the place of x in the end
    const int outputs = rows_of_x * row_blocks * 64, x_bytes = rows_of_x * row_stride;
    slots = X + (outputs > x_bytes ? outputs : x_bytes);
    scales = slots + (row_blocks + warps / team) * team * tiles * 512;
    end = scales + row_blocks * groups * 16 * scale_bytes;
  }
};

template <int BITS, int TILES, class X, bool GROUPED, int DEPTH>
__global__ void __launch_bounds__(512, TILES == 1 && DEPTH <= 8 ? 2 : 1) decode(const Task task) {
  using U = Unit<BITS, TILES, X>;
  using Part = typename U::Sum;
  // sums that scales of groups have been applied to are floats
  using Sum = std::conditional_t<GROUPED, float, Part>;
  constexpr int WORDS = TILES * 4;
  extern __shared__ __align__(128) unsigned char memory[];

  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int ranks = task.ranks, rank = ranks > 1 ? cluster_rank() : 0;
  const int block = blockIdx.x / ranks, blocks = gridDim.x / ranks;
  const int first_row = static_cast<unsigned>(task.row_blocks * block) / static_cast<unsigned>(blocks);
  const int rows =
      static_cast<unsigned>(task.row_blocks * (block + 1)) / static_cast<unsigned>(blocks) - first_row;
  const int first_unit = task.units * rank / ranks;
  const int units = task.units * (rank + 1) / ranks - first_unit;
  const int total = rows * units, team = task.team, teams = warps / team;
  const int first_group = GROUPED ? (first_unit * U::STEPS) >> task.group_steps_log2 : 0;
  const int groups =
      GROUPED ? min(task.groups, (((first_unit + units) * U::STEPS - 1) >> task.group_steps_log2) + 1) -
                    first_group
              : 1;
  const int scale_bytes = bytes_of(task.scale_type);
  const Places places(task.m, units * U::BYTES, rows, warps, team, TILES, groups, scale_bytes);
  unsigned char* x_here = memory + Places::X;
  Sum* slots = reinterpret_cast<Sum*>(memory + places.slots);
  unsigned char* scales = memory + places.scales;
  float* rows_scale = reinterpret_cast<float*>(memory + Places::ROWS_SCALE);

  // scales of the block, 16 bytes a copy
  {
    const int vectors = groups * scale_bytes;
    const unsigned char* from = static_cast<const unsigned char*>(task.scale);
    for (int i = threadIdx.x; i < rows * vectors; i += blockDim.x) {
      const int r = i / vectors, v = i - r * vectors;
      const int64_t at = (static_cast<int64_t>(first_row + r) * task.groups + first_group) * 16 * scale_bytes;
      copy_async(shared_address(scales + i * 16), from + at + v * 16);
    }
  }

  // the first loads of weights
  const int mine = warp / team, member = warp - mine * team;
  // products fit in 31 bits: the host sees to it
  auto share = [&](int t) -> int { return static_cast<unsigned>(total * t) / static_cast<unsigned>(teams); };
  int at = share(mine) + member;
  const int last = share(mine + 1);
  const int count = at < last ? (last - at + team - 1) / team : 0;
  int row = at / units, unit = at - row * units;
  const uint64_t policy = read_once();
  const uint4* next =
      task.codes +
      (static_cast<int64_t>(first_row + row) * task.units + first_unit + unit) * 32 + lane;
  const int skip = (task.units - units) * 32, stride = team * 32;
  int next_unit = unit;
  uint4 ring[DEPTH];
  auto fetch = [&](uint4& to) {
    to = load_weights(next, policy);
    next += stride;
    next_unit += team;
    if (next_unit >= units) next_unit -= units, next += skip;
  };
#pragma unroll
  for (int d = 0; d < DEPTH; d++)
    if (d < count) fetch(ring[d]);
  let_next_start();


  // slots that no warp writes count as zero
  for (int i = threadIdx.x; i < (rows + teams) * team * WORDS * 32; i += blockDim.x) slots[i] = 0;
  const bool codes_here = sizeof(X) == 1 && task.x_type != 3;
  if (codes_here && threadIdx.x < 64) rows_scale[threadIdx.x] = 0.f;

  wait_for_previous();
  constexpr int UNIT_COLUMNS = 32 * U::STEPS;
  Rows x_rows{task.x, task.x_pitch, task.x_type, task.m, first_unit * UNIT_COLUMNS,
              min(task.k, (first_unit + units) * UNIT_COLUMNS), units * UNIT_COLUMNS,
              places.row_stride};
  if (codes_here) {
    if constexpr (sizeof(X) == 1) {
      __syncthreads();
      find_largest(x_rows, reinterpret_cast<uint32_t*>(rows_scale));
      __syncthreads();
      uint32_t largest = 0;
      if (ranks > 1) {
        cluster_barrier();
        if (threadIdx.x < task.m)
          for (int r = 0; r < ranks; r++) largest = max(largest, word_of(r, rows_scale + threadIdx.x));
        cluster_barrier();
      } else if (threadIdx.x < task.m) {
        largest = __float_as_uint(rows_scale[threadIdx.x]);
      }
      if (threadIdx.x < task.m)
        rows_scale[threadIdx.x] = __fdiv_rn(__uint_as_float(largest), 127.f);
      __syncthreads();
      stage_codes(x_rows, rows_scale, x_here);
    }
  } else {
    stage(x_rows, x_here, X());
    if (threadIdx.x < task.m)
      rows_scale[threadIdx.x] = task.x_scale ? task.x_scale[threadIdx.x] : 1.f;
  }
  copies_arrived();
  __syncthreads();

  Sum sums[TILES][4];
  auto clear = [&] {
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int c = 0; c < 4; c++) sums[t][c] = 0;
  };
  auto leave = [&] {
    Sum* slot = slots + ((mine + row) * team + member) * WORDS * 32 + lane;
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int c = 0; c < 4; c++) slot[(t * 4 + c) * 32] = sums[t][c];
    clear();
  };
  clear();
  // rows of x past the last are the last again: their columns of the product go nowhere
  const uint32_t tile_bytes = 8 * places.row_stride;
  const uint32_t x_lane = shared_address(x_here) +
                          (TILES == 1 ? min(lane % 8, task.m - 1) : lane % 8) * places.row_stride +
                          lane / 8 * 16;
  uint32_t x_at = x_lane + unit * U::BYTES;
  const uint32_t x_step = team * U::BYTES, x_wrap = units * U::BYTES;

  auto use = [&](const uint4& loaded) {
    const uint32_t w[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    if constexpr (GROUPED) {
      Part part[TILES][4];
      auto nothing = [&] {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int c = 0; c < 4; c++) part[t][c] = 0;
      };
      auto apply = [&](int step) {
        const int g = min(((first_unit + unit) * U::STEPS + step) >> task.group_steps_log2,
                          first_group + groups - 1) - first_group;
        const int i = (row * groups + g) * 16 + lane / 4;
        const float low = number_at(scales, i, task.scale_type);
        const float high = number_at(scales, i + 8, task.scale_type);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int c = 0; c < 4; c++)
            sums[t][c] = fmaf(static_cast<float>(part[t][c]), c < 2 ? low : high, sums[t][c]);
      };
      if ((1 << task.group_steps_log2) >= U::STEPS) {
        nothing();
        U::all(w, x_at, tile_bytes, part);
        apply(0);
      } else {
#pragma unroll
        for (int j = 0; j < U::STEPS; j++) {
          nothing();
          U::step(w, j, x_at, tile_bytes, part);
          apply(j);
        }
      }
    } else {
      U::all(w, x_at, tile_bytes, sums);
    }
  };
  for (int i = 0; i < count; i += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      if (i + d < count) {
        use(ring[d]);
        if (i + d + DEPTH < count) fetch(ring[d]);
        unit += team;
        x_at += x_step;
        if (unit >= units) {
          leave();
          unit -= units, row += 1, x_at -= x_wrap;
        }
      }
    }
  }
  if (count && unit >= team) leave();  // else its last unit was a row-block's last
  __syncthreads();

  // row-block r has the slots of teams [(r units + 1) teams - 1] / total to [(r + 1) units teams - 1] / total
  auto slots_of = [&](int r, int word, Sum& sum) {
    const int from = static_cast<unsigned>((r * units + 1) * teams - 1) / static_cast<unsigned>(total);
    const int to = static_cast<unsigned>((r + 1) * units * teams - 1) / static_cast<unsigned>(total);
    for (int s = (from + r) * team; s < (to + r + 1) * team; s++) sum += slots[s * WORDS * 32 + word];
  };
  const int outputs = rows * 16 * task.m;
  auto word_of_output = [](int j, int m) {
    return ((m / 8) * 4 + j / 8 * 2 + m % 2) * 32 + j % 8 * 4 + m % 8 / 2;
  };
  auto store = [&](int m, int r, int j, Sum sum) {
    const int n = (first_row + r) * 16 + j;
    if (n >= task.n) return;
    float value = static_cast<float>(sum) * task.factor;
    if (!GROUPED) value *= number_at(scales, r * 16 + j, task.scale_type);
    value *= rows_scale[m];
    if (task.bias) value += number_at(task.bias, n, task.bias_type);
    const int64_t to = static_cast<int64_t>(m) * task.n + n;
    if (task.residual) value += number_at(task.residual, to, task.residual_type);
    put_number(task.y, to, task.y_type, value);
  };
  if (ranks == 1) {
    for (int o = threadIdx.x; o < outputs; o += blockDim.x) {
      const int m = o / (rows * 16), nj = o - m * rows * 16, r = nj / 16, j = nj % 16;
      Sum sum = 0;
      slots_of(r, word_of_output(j, m), sum);
      store(m, r, j, sum);
    }
    return;
  }
  // each block of the cluster adds its own slots into the first of each row-block (nobody else reads
  // those any more), then finishes its share of the outputs
  Sum* totals = reinterpret_cast<Sum*>(x_here);  // x is not needed any more
  for (int o = threadIdx.x; o < outputs; o += blockDim.x) {
    const int m = o / (rows * 16), nj = o - m * rows * 16;
    Sum sum = 0;
    slots_of(nj / 16, word_of_output(nj % 16, m), sum);
    totals[o] = sum;
  }
  cluster_barrier();
  for (int o = rank * blockDim.x + threadIdx.x; o < outputs; o += ranks * blockDim.x) {
    const int m = o / (rows * 16), nj = o - m * rows * 16;
    Sum sum = 0;
    for (int r = 0; r < ranks; r++) {
      const uint32_t word = word_of(r, totals + o);
      sum += *reinterpret_cast<const Sum*>(&word);
    }
    store(m, nj / 16, nj % 16, sum);
  }
  cluster_barrier();
}
