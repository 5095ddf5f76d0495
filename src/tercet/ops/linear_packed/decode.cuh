// y[M, N] = x[M, K] W[N, K]^T for M up to 16, W in the layout "fragments": bound by reading W.
//
// A block takes a run of row-blocks (16 rows of W each), and each of its warps a fixed range of K. So a
// warp holds its part of x in registers, as the B operand of mma, over all row-blocks: the inner loop
// only fetches and decodes weights. Where the range is longer than UNITS units, the warp goes over the
// row-blocks again for each further piece of it.
//
// A piece of a row-block is contiguous in memory. One lane requests it by a bulk copy into a ring in
// shared memory that belongs to the warp alone: one barrier a stage says that it came, a __syncwarp
// that it was read. At the end of a piece a warp adds its sums to a slot of the row-block: integers to
// one slot of all warps, since their order does not matter; floats to the warp's own, and in the end
// all threads add the slots in a fixed order. Then they scale and store.
//
// Weights and scales do not depend on the kernel before, so with programmatic dependent launch they are
// on their way while that kernel still runs; x is read after it.
#pragma once
#include <type_traits>

#include "decode_rows.cuh"
#include "decode_task.cuh"
#include "decode_unit.cuh"

template <int BITS, int TILES, class X, Scales SCALES, int UNITS>
__global__ void __launch_bounds__(512, 1) decode(const __grid_constant__ Task task) {
  using U = Unit<BITS, TILES, X>;
  using Part = typename U::Sum;
  constexpr bool GROUPED = SCALES != OF_ROWS, ZEROS = SCALES == WITH_ZEROS;
  // sums that scales of groups have been applied to are floats
  using Sum = std::conditional_t<GROUPED, float, Part>;
  constexpr bool SHARED_SLOTS = std::is_same_v<Sum, int>;
  constexpr int PITCH = Places::SLOT_PITCH, STEP_WORDS = U::STEP_WORDS;
  extern __shared__ __align__(128) unsigned char memory[];

  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  const int block = blockIdx.x;
  const int first_row = block * task.rows_each + min(block, task.rows_more);
  const int rows = task.rows_each + (block < task.rows_more);
  const int first_unit = warp * task.warp_units;
  const int units = max(0, min(task.warp_units, task.units - first_unit));
  const int items = (units + UNITS - 1) / UNITS * rows;  // pieces of row-blocks
  const int m_rows = task.m, scale_bytes = bytes_of(task.scale_type);
  const Places places(task, warps, UNITS * U::BYTES, ZEROS ? UNITS * U::SUM_BYTES : 0, SHARED_SLOTS);
  float* rows_scale = reinterpret_cast<float*>(memory + Places::ROWS_SCALE);

  // the first requests for weights
  const int stages = task.stages;
  const uint32_t barriers = shared_address(memory + Places::BARRIERS) + warp * stages * 8;
  const uint32_t ring = shared_address(memory + Places::RING) + warp * stages * task.stage_bytes;
  const uint4* const start = task.codes + (static_cast<int64_t>(first_row) * task.units + first_unit) * 32;
  const uint64_t policy = read_once();
  auto group_of = [&](int unit, int step) {
    return min((unit * U::STEPS + step) >> task.group_steps_log2, task.groups - 1);
  };
  int asked = 0, asked_row = 0, asked_unit = 0, asked_stage = 0;
  const uint4* next = start;
  auto ask = [&] {
    const int count = min(UNITS, units - asked_unit);
    if (lane == 0) {
      const uint32_t barrier = barriers + asked_stage * 8, to = ring + asked_stage * task.stage_bytes;
      if constexpr (GROUPED) {
        const int low = group_of(first_unit + asked_unit, 0);
        const int high = group_of(first_unit + asked_unit + count - 1, U::STEPS - 1);
        const int bytes = (high - low + 1) * 16 * scale_bytes;
        const int64_t at = static_cast<int64_t>(first_row + asked_row) * task.groups + low;
        expect(barrier, count * 512 + (ZEROS ? 2 : 1) * bytes);
        copy_bulk(to, next, count * 512, barrier, policy);
        if constexpr (ZEROS)
          copy_bulk(to + UNITS * 512 + bytes, static_cast<const char*>(task.zero) + at * 16 * scale_bytes,
                    bytes, barrier, policy);
        copy_bulk(to + UNITS * 512, static_cast<const char*>(task.scale) + at * 16 * scale_bytes,
                  bytes, barrier, policy);
      } else {
        expect(barrier, count * 512);
        copy_bulk(to, next, count * 512, barrier, policy);
      }
    }
    asked++, asked_row++;
    next += task.units * 32;
    if (++asked_stage == stages) asked_stage = 0;
    if (asked_row == rows) asked_row = 0, asked_unit += UNITS, next = start + asked_unit * 32;
  };
  Sum* const slots = reinterpret_cast<Sum*>(memory + places.slots);
  const int slot_words = m_rows * PITCH, slot_step = (SHARED_SLOTS ? 1 : warps) * slot_words;
  if constexpr (SHARED_SLOTS) {
    for (int i = threadIdx.x; i < rows * slot_words; i += blockDim.x) slots[i] = 0;
    __syncthreads();
  }
  const uint32_t scales_barrier = shared_address(memory + Places::SCALES_BARRIER);
  if (lane == 0) {
#pragma unroll 1
    for (int s = 0; s < stages; s++) barrier_init(barriers + s * 8);
    if (warp == 0) barrier_init(scales_barrier);
    barriers_ready();
    if (!GROUPED && warp == 0) {
      const int bytes = 16 * scale_bytes;
      expect(scales_barrier, rows * bytes);
      copy_bulk(shared_address(memory + places.scales),
                static_cast<const char*>(task.scale) + static_cast<int64_t>(first_row) * bytes,
                rows * bytes, scales_barrier, policy);
    }
  }
  __syncwarp();
  const int first_asks = min(stages, items);
#pragma unroll 1
  while (asked < min(task.early, first_asks)) ask();
  let_next_start();

  unsigned char* const x_here = memory + places.x + warp * m_rows * places.row_stride;
  auto stage_x = [&](int unit) {
    const int column = (first_unit + unit) * U::COLUMNS;
    const Rows part{task.x, task.x_pitch, task.x_type, m_rows, column,
                    min(task.k, (first_unit + units) * U::COLUMNS), UNITS * U::COLUMNS, places.row_stride};
    if constexpr (sizeof(X) == 1) {
      if (task.x_type != 3) return stage_codes(part, rows_scale, x_here);
    }
    stage<X>(part, x_here);
  };
  const bool floats = sizeof(X) == 1 && task.x_type != 3;
  const int outputs = rows * 16 * m_rows, width = rows * 16;
  struct Addend { uint32_t bias, residual; };
  auto addend = [&](int o) {
    Addend raw{0, 0};
    if (!task.bias && !task.residual) return raw;
    const int m = o / width, n = first_row * 16 + o % width;
    if (o >= outputs || n >= task.n) return raw;
    if (task.bias) raw.bias = bits_at(task.bias, n, task.bias_type);
    if (task.residual) raw.residual = bits_at(task.residual, m * task.residual_pitch + n, task.residual_type);
    return raw;
  };
  // what a thread's first output needs besides its sum: loaded early, looked at in the end
  float x_scale = 1.f;
  Addend first_addend{0, 0};

  uint32_t held[TILES][UNITS * U::STEPS * STEP_WORDS];
  int stage_now = 0;
  uint32_t parity = 0;
  float* const x_sums =
      reinterpret_cast<float*>(memory + places.x_sums) + warp * UNITS * (U::SUM_BYTES / 4);
  // whether a unit's step is the last of its group, or of the unit
  auto ends_group = [&](int j) {
    return j + 1 == U::STEPS || ((j + 1) & ((1 << task.group_steps_log2) - 1)) == 0;
  };
  // The first pass is a rehearsal: on whatever lies in shared memory and without a result. Code is
  // fetched from memory as slowly as weights are; so it comes with them, not after them.
  const int first_pass = task.rehearse ? 0 : 1, starting_pass = task.dependent ? 1 : first_pass;
#pragma unroll 1
  for (int pass = first_pass; pass < 2; pass++) {
    const bool real = pass == 1;
    if (pass == starting_pass) {
      wait_for_previous();
      if (floats) {
        if constexpr (sizeof(X) == 1) {
          if (threadIdx.x < 16) rows_scale[threadIdx.x] = 0.f;
          __syncthreads();
          const Rows all{task.x, task.x_pitch, task.x_type, m_rows, 0, task.k, task.units * U::COLUMNS, 0};
          find_largest(all, reinterpret_cast<uint32_t*>(rows_scale));
          __syncthreads();
          if (threadIdx.x < m_rows) rows_scale[threadIdx.x] = __fdiv_rn(rows_scale[threadIdx.x], 127.f);
          __syncthreads();
        }
      } else if (task.x_scale && threadIdx.x < m_rows) {
        x_scale = task.x_scale[threadIdx.x];
      }
      first_addend = addend(threadIdx.x);
    }
    // x one piece ahead: its code is long, so it is here once
    const int last = real ? units : UNITS;
#pragma unroll 1
    for (int unit = pass == starting_pass ? -UNITS : 0; unit < last; unit += UNITS) {
      if (unit >= 0) {
        if (real) copies_arrived();
        __syncwarp();
#pragma unroll
        for (int t = 0; t < TILES; t++) {
          // rows of x past the last are the last again: their columns of the product go nowhere
          const int row = min((sizeof(X) == 1 ? lane % 8 : lane / 4) + 8 * t, m_rows - 1);
          U::template hold<UNITS>(shared_address(x_here) + row * places.row_stride +
                                      (sizeof(X) == 1 ? lane / 8 * 16 : 0),
                                  lane, held[t]);
        }
        if constexpr (ZEROS) {
          // the sum of x over each group's part of a unit, in the places that its product is in
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            Part part[4] = {U::ZERO, U::ZERO};
#pragma unroll
            for (int i = 0; i < UNITS * U::STEPS; i++) {
              U::sum_step(held[t] + i * STEP_WORDS, part);
              if (lane < 4)
                *reinterpret_cast<float2*>(x_sums + (i * TILES + t) * 8 + lane * 2) =
                    make_float2(U::value(part[0]) / task.factor, U::value(part[1]) / task.factor);
              if (ends_group(i % U::STEPS)) part[0] = part[1] = U::ZERO;
            }
          }
        }
        __syncwarp();
      }
      // x is asked for before most of the weights, since it would come after them
      if ((real || unit < 0) && unit + UNITS < units) stage_x(unit + UNITS);
      if (unit < 0) {
#pragma unroll 1
        while (asked < first_asks) ask();
        continue;
      }

      Sum* slot = slots + (SHARED_SLOTS ? 0 : warp * slot_words) + lane % 4 * 2 * PITCH + lane / 4;
      const int low = GROUPED ? group_of(first_unit + unit, 0) : 0;
      const int high = GROUPED ? group_of(first_unit + min(unit + UNITS, units) - 1, U::STEPS - 1) : 0;
#pragma unroll 1
      for (int row = real ? 0 : rows - 1; row < rows; row++, slot += slot_step) {
        const uint32_t at = ring + stage_now * task.stage_bytes;
        if (real) wait_for(barriers + stage_now * 8, parity);
        uint32_t w[UNITS][4];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
          const uint4 four = four_words(at + u * 512 + lane * 16);
          w[u][0] = four.x, w[u][1] = four.y, w[u][2] = four.z, w[u][3] = four.w;
        }
        // chains of dependent products: few warps have to keep the tensor cores busy
        constexpr int CHAINS = TILES == 1 && !GROUPED ? 4 : 2;
        Sum sums[CHAINS][TILES][4];
#pragma unroll
        for (int i = 0; i < 4 * CHAINS * TILES; i++) sums[i / (4 * TILES)][i / 4 % TILES][i % 4] = 0;
        if constexpr (GROUPED) {
          const unsigned char* scales =
              memory + Places::RING + (warp * stages + stage_now) * task.stage_bytes + UNITS * 512;
          auto apply = [&](const Part(&part)[TILES][4], int u, int j) {
            const int i = (min(group_of(first_unit + unit + u, j), high) - low) * 16 + lane / 4;
            const float above = number_at(scales, i, task.scale_type);
            const float below = number_at(scales, i + 8, task.scale_type);
            float zeros[2];
            if constexpr (ZEROS) {
              zeros[0] = number_at(scales, (high - low + 1) * 16 + i, task.scale_type);
              zeros[1] = number_at(scales, (high - low + 1) * 16 + i + 8, task.scale_type);
            }
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
              for (int c = 0; c < 4; c++) {
                float value = U::value(part[t][c]);
                if constexpr (ZEROS) {
                  const int at = ((u * U::STEPS + j) * TILES + t) * 8 + lane % 4 * 2 + c % 2;
                  value = fmaf(-zeros[c / 2], x_sums[at], value);
                }
                sums[u % CHAINS][t][c] = fmaf(value, c < 2 ? above : below, sums[u % CHAINS][t][c]);
              }
          };
#pragma unroll
          for (int u = 0; u < UNITS; u++) {
            Part part[TILES][4];
#pragma unroll
            for (int i = 0; i < 4 * TILES; i++) part[i / 4][i % 4] = U::ZERO;
#pragma unroll
            for (int j = 0; j < U::STEPS; j++) {
              const uint32_t* x[TILES];
#pragma unroll
              for (int t = 0; t < TILES; t++) x[t] = held[t] + (u * U::STEPS + j) * STEP_WORDS;
              U::step(w[u], j, x, part);
              if (ends_group(j)) {
                apply(part, u, j);
#pragma unroll
                for (int i = 0; i < 4 * TILES; i++) part[i / 4][i % 4] = U::ZERO;
              }
            }
          }
          __syncwarp();
          if (real && asked < items) ask();
        } else {
          __syncwarp();
          if (real && asked < items) ask();
#pragma unroll
          for (int u = 0; u < UNITS; u++)
#pragma unroll
            for (int j = 0; j < U::STEPS; j++) {
              const uint32_t* x[TILES];
#pragma unroll
              for (int t = 0; t < TILES; t++) x[t] = held[t] + (u * U::STEPS + j) * STEP_WORDS;
              U::step(w[u], j, x, sums[u % CHAINS]);
            }
        }
        // c: row lane / 4 + 8 (c / 2) of W, row 8 t + 2 (lane % 4) + c % 2 of x
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            if (8 * t + lane % 4 * 2 + c % 2 >= m_rows) continue;
            Sum& to = slot[(8 * t + c % 2) * PITCH + c / 2 * 8];
            Sum sum = sums[0][t][c] + sums[1][t][c];
            if constexpr (CHAINS == 4) sum += sums[2][t][c] + sums[3][t][c];
            if constexpr (SHARED_SLOTS) atomicAdd(&to, real ? sum : 0);
            else to = unit ? to + sum : sum;
          }
        if (real && ++stage_now == stages) stage_now = 0, parity ^= 1;
      }
    }
    if (real && !floats && threadIdx.x < m_rows) rows_scale[threadIdx.x] = x_scale;
    __syncthreads();

    if constexpr (!GROUPED)
      if (real) wait_for(scales_barrier, 0);
    const int active =
        SHARED_SLOTS ? 1 : min(warps, (task.units + task.warp_units - 1) / task.warp_units);
    constexpr int AT_ONCE = 2;
#pragma unroll 1
    for (int first = threadIdx.x; first < outputs; first += AT_ONCE * blockDim.x) {
      Addend raw[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++)
        raw[i] = i == 0 && first == threadIdx.x ? first_addend : addend(first + i * blockDim.x);
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int o = first + i * blockDim.x;
        const int m = o / width, j = o % width, n = first_row * 16 + j;
        if (o >= outputs || n >= task.n) continue;
        const Sum* from = slots + j / 16 * slot_step + m * PITCH + j % 16;
        Sum sum = from[0];
#pragma unroll 4
        for (int w = 1; w < active; w++) sum += from[w * slot_words];
        const float scale = GROUPED ? 1.f : number_at(memory + places.scales, j, task.scale_type);
        const float more = number_of(raw[i].bias, task.bias_type) +
                           number_of(raw[i].residual, task.residual_type);
        const float value = static_cast<float>(sum) * task.factor * scale * rows_scale[m] + more;
        if (real) put_number(task.y, static_cast<int64_t>(m) * task.n + n, task.y_type, value);
      }
    }
  }
}
