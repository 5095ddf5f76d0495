// y[M, N] = x[M, K] W[N, K]^T for M up to 16, W in the layout "fragments": bound by reading W.
//
// A cluster of blocks takes a run of row-blocks (16 rows of W each). The blocks split K, and so do the
// warps of a block; other warps take other row-blocks. A warp's weights come straight into registers, a
// piece of a row-block at a time and several pieces ahead; the block's part of x lies in shared memory,
// from where `ldmatrix` brings it as the B operand of mma.
//
// At the end of a row-block a warp stores its partial sums in a slot of the row-block and of its range of K.
// In the end all threads of the cluster add the slots in a fixed order (split-K reduction), scale and store.
//
// Weights and scales do not depend on the previous kernel, so with programmatic dependent launch they are
// loaded while that kernel still runs; x is read after it.
#pragma once
#include <type_traits>

#include "quantize_x.cuh"
#include "digits.cuh"
#include "epilogue.cuh"
#include "stage_x.cuh"
#include "task.cuh"
#include "packed_weight/hopper/mma_unit.cuh"

// how a warp iterates over its weights
template <int BITS, int TILES, class X, Scales SCALES> struct Pace {
  using U = Unit<BITS, TILES, X>;
  static constexpr bool GROUPED = SCALES != OF_ROWS;
  static constexpr int UNITS = 4;  // of a piece
  static constexpr int CHUNKS = 2; // in flight
  // steps that one scale serves
  static constexpr int RUN = SCALES == OF_ROWS || SCALES == OF_UNITS ? U::STEPS : SCALES == OF_PAIRS ? 2 : 1;
  static constexpr int RUNS = U::STEPS / RUN;
  // x is digits of floats: rows of x for a token, and steps that they need
  static constexpr bool QUANTIZED = std::is_same_v<X, Quantized>;
  static constexpr bool IN_DIGITS = sizeof(X) == 1 && !std::is_same_v<X, int8_t> && !QUANTIZED;
  // pieces that are loaded before x; where x is converted, the other pieces are loaded after x
  static constexpr int PREFETCHED = IN_DIGITS || QUANTIZED ? 1 : CHUNKS;
  static constexpr int X_ROWS = IN_DIGITS ? DIGITS : 1;
  static constexpr int SUM_BYTES =
      IN_DIGITS ? 2 * sizeof(float) / UNITS : SCALES == WITH_ZEROS ? RUNS * TILES * 32 : 0;
  // scales of a piece, of 16 rows each, that a lane loads; a warp shares them in shared memory
  static constexpr int SCALES_EACH = GROUPED ? UNITS * RUNS * 16 / 32 : 0;
  static constexpr int SCALE_BYTES = SCALES_EACH * 32 * 4 * (SCALES == WITH_ZEROS ? 2 : 1);
};

template <int BITS, int TILES, class X, Scales SCALES>
__global__ void __launch_bounds__(512, 1) decode(const __grid_constant__ Task task) {
  using U = Unit<BITS, TILES, X>;
  using P = Pace<BITS, TILES, X, SCALES>;
  using PartialSum = typename U::Sum;
  constexpr bool GROUPED = P::GROUPED, ZEROS = SCALES == WITH_ZEROS;
  constexpr bool CODES = std::is_same_v<X, int8_t>;
  constexpr bool IN_DIGITS = P::IN_DIGITS, QUANTIZED = P::QUANTIZED;
  // sums that scales of groups, or steps of digits, have been applied to are floats
  using Sum = std::conditional_t<GROUPED || IN_DIGITS, float, PartialSum>;
  constexpr int PITCH = SharedMemory::SLOT_PITCH, UNITS = P::UNITS, CHUNKS = P::CHUNKS;
  extern __shared__ __align__(128) unsigned char memory[];

  const int lane = threadIdx.x, thread = thread_of_block();
  const int warp_k = __shfl_sync(~0u, static_cast<int>(threadIdx.y), 0), warps_k = blockDim.y;
  const int warp_n = __shfl_sync(~0u, static_cast<int>(threadIdx.z), 0), warps_n = blockDim.z;
  const int rank = blockIdx.x, cluster_size = gridDim.x, cluster = blockIdx.y;
  const int first_row = cluster * task.rows_each + min(cluster, task.rows_more);
  const int rows = task.rows_each + (cluster < task.rows_more);
  const int block_unit = rank * warps_k * task.warp_units;
  const int first_unit = block_unit + warp_k * task.warp_units;
  const int units = min(task.warp_units, task.units - first_unit);
  const int last_row = units > 0 ? rows : 0;  // for this warp, rows from warp_n on
  const int m_rows = task.m;
  const SharedMemory& shared = task.shared;
  float* const rows_scale = reinterpret_cast<float*>(memory + SharedMemory::ROWS_SCALE);
  auto group_of = [&](int unit, int step) {
    return min(((first_unit + unit) * U::STEPS + step) >> task.group_steps_log2, task.groups - 1);
  };

  uint4 w[CHUNKS][UNITS];
  constexpr int EACH = P::SCALES_EACH > 0 ? P::SCALES_EACH : 1;
  uint32_t scale_bits[CHUNKS][EACH], zero_bits[CHUNKS][EACH];
  int asked_unit = 0, asked_row = warp_n;
  const uint4* const codes =
      task.codes + (static_cast<int64_t>(first_row + warp_n) * task.units + first_unit) * 32;
  const uint4* next = codes + lane;
  auto ask = [&](int d) {
    if (asked_row < last_row) {
      const int count = units - asked_unit;
#pragma unroll
      for (int u = 0; u < UNITS; u++)
        if (u < count) w[d][u] = load_once(next + u * 32);
      if constexpr (GROUPED) {
        const int64_t at = static_cast<int64_t>(first_row + asked_row) * task.groups;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
          const int run = i * 2 + lane / 16;
          const int group = group_of(asked_unit + run / P::RUNS, run % P::RUNS * P::RUN);
          scale_bits[d][i] = bits_at(task.scale, (at + group) * 16 + lane % 16, task.scale_type);
          if (ZEROS) zero_bits[d][i] = bits_at(task.zero, (at + group) * 16 + lane % 16, task.zero_type);
        }
      }
      next += UNITS * 32, asked_unit += UNITS;
      if (asked_unit >= units) {
        next += (warps_n * task.units - asked_unit) * 32;
        asked_unit = 0, asked_row += warps_n;
      }
    }
  };
#pragma unroll
  for (int i = 0; i < CHUNKS * UNITS; i++) w[i / UNITS][i % UNITS] = make_uint4(0, 0, 0, 0);

  unsigned char* const x_here = memory + shared.x;
  const int multicast = CODES ? task.multicast : 0;
  const int which = multicast > 1 ? cluster & (multicast - 1) : 0;
  const uint32_t barrier = shared_address(memory + SharedMemory::BARRIER);
  const int column = block_unit * U::COLUMNS, share = task.warp_units * U::COLUMNS;
  const Rows slice{task.x, task.x_pitch, task.x_type, m_rows, column,
                  min(task.k, column + warps_k * share), share, shared.row_stride};
  // steps of digits, or sums of x over runs of steps
  float* const beside_x = reinterpret_cast<float*>(memory + shared.x_sums);
  bool odd = false;
  auto ask_first = [&](int from, int to) {
#pragma unroll
    for (int d = 0; d < CHUNKS; d++)
      if (d >= from && d < to) ask(d);
  };
  auto ask_more = [&] {
    if (task.pdl) ask_first(P::PREFETCHED, CHUNKS);
  };
  auto stage_x = [&] {
    if constexpr (IN_DIGITS) {
      odd = stage_digits<typename X::Float, UNITS * U::COLUMNS / 32>(slice, warps_k * share, x_here,
                                                                     beside_x, ask_more);
      return;
    } else if constexpr (QUANTIZED) {
      uint32_t* const tops = reinterpret_cast<uint32_t*>(memory + SharedMemory::SCALES);
      const int columns = warps_k * share;
      if (task.x_type == 1)
        return stage_codes<__half>(slice, task.k, columns, tops, rows_scale, x_here, ask_more);
      return stage_codes<__nv_bfloat16>(slice, task.k, columns, tops, rows_scale, x_here, ask_more);
    } else if constexpr (CODES) {
      if (multicast) {
        // the blocks that have the same part of K
        int mask = 0;
        for (int i = 0; i < multicast; i++) mask |= 1 << (rank + i * cluster_size);
        if (thread < 32) multicast_rows(slice, which, multicast, mask, barrier, shared_address(x_here));
        return;
      }
    }
    if constexpr (std::is_base_of_v<Product<__half>, Product<X>>) {
      if (task.x_type == 4) return stage_bytes<true>(slice, x_here);
      // int8 x against int8 codes has a library of its own
      if (!std::is_same_v<X, __half> && task.x_type == 3) return stage_bytes<false>(slice, x_here);
    }
    if constexpr (!IN_DIGITS && !QUANTIZED) stage(slice, X(), x_here);
  };

  Outputs<Sum, !GROUPED> outputs(task, memory, first_row, rows, QUANTIZED);
  if (multicast) {
    if (thread == 0) expect(barrier, m_rows * max(0, slice.end - slice.first));
    clear_end(slice, warps_k * share, x_here);
    cluster_arrive();
  }
  // where the blocks of two kernels do not fit on a multiprocessor together, x must not wait behind all the
  // weights that were asked for
  const bool sends_first = multicast && thread < 32 && warps_k * warps_n > 8;
  const bool ahead = task.pdl && !sends_first;
  if (ahead) {
    ask_first(0, P::PREFETCHED);
    outputs.ask_scale();
  }
  if (multicast) cluster_wait();
  if (task.pdl) {
    launch_dependents();
    wait_for_previous_kernel();
  }
  constexpr int CHAINS = GROUPED ? 1 : TILES == 1 ? 4 : 2;  // of dependent products
  constexpr int FINAL = IN_DIGITS ? 1 : CHAINS;
  Sum sums[FINAL][TILES][4];
  auto clear = [&] {
#pragma unroll
    for (int i = 0; i < 4 * FINAL * TILES; i++) sums[i / (4 * TILES)][i / 4 % TILES][i % 4] = 0;
  };
  clear();
  stage_x();
  if (!ahead) {
    ask_first(0, CHUNKS);
    outputs.ask_scale();
  }
  outputs.ask_rest();
  if (multicast) {
    arrived(barrier);
  } else {
    if (CODES) copies_arrived();
    if (IN_DIGITS) odd = __syncthreads_or(odd);
    else __syncthreads();
  }
  uint32_t x_start[TILES];
#pragma unroll
  for (int t = 0; t < TILES; t++)
    // rows of x past the last are the last again: their columns of the product go nowhere
    x_start[t] = shared_address(x_here) + min(lane % 8 + 8 * t, m_rows * P::X_ROWS - 1) * shared.row_stride +
                 warp_k * task.warp_units * U::BYTES + lane / 8 * 16;
  float* const x_sums = beside_x + warp_k * task.warp_units * P::SUM_BYTES / 4;
  // the steps of this lane's token and digits
  const float* steps = beside_x + min(lane % 4 / 2, m_rows - 1) * warps_k * task.warp_units / UNITS +
                       warp_k * task.warp_units / UNITS;
  if constexpr (ZEROS) {
    // the sum of x over each run of steps, in the places that its product is in
    for (int i = 0; warp_n == 0 && i < task.warp_units; i += U::HELD_UNITS) {
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        uint32_t held[U::HELD_UNITS * U::STEPS * U::STEP_WORDS];
        U::hold(x_start[t] + i * U::BYTES, held);
#pragma unroll
        for (int j = 0; j < U::HELD_UNITS * U::STEPS; j++) {
          PartialSum slice[4] = {U::ZERO, U::ZERO};
          U::sum_step(held + j * U::STEP_WORDS, slice);
          if (lane < 4)
            *reinterpret_cast<float2*>(x_sums + ((i * U::STEPS + j) * TILES + t) * 8 + lane * 2) =
                make_float2(U::value(slice[0]) / task.factor, U::value(slice[1]) / task.factor);
        }
      }
    }
    __syncthreads();
  }

  int unit = 0, row = warp_n;
  Sum* slot = outputs.slot(warp_n, warp_k) + lane % 4 * 2 * PITCH + lane / 4;
  // [run of a piece][lane / 4][row lane / 4, row lane / 4 + 8]
  float2* const scales_here = reinterpret_cast<float2*>(
      memory + shared.scales + (warp_n * warps_k + warp_k) * P::SCALE_BYTES);
  float2* const zeros_here = scales_here + EACH * 16;
#pragma unroll 1
  while (row < last_row) {
#pragma unroll
    for (int d = 0; d < CHUNKS; d++) {
      if (row >= last_row) break;
      if constexpr (GROUPED) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
          const int to = ((i * 2 + lane / 16) * 8 + lane % 8) * 2 + lane / 8 % 2;
          reinterpret_cast<float*>(scales_here)[to] = number_of(scale_bits[d][i], task.scale_type);
          if (ZEROS)
            reinterpret_cast<float*>(zeros_here)[to] = number_of(zero_bits[d][i], task.zero_type);
        }
        __syncwarp();
      }
      auto apply = [&](const PartialSum(&slice)[TILES][4], int u, int run) {
        const float2 scale = scales_here[(u * P::RUNS + run) * 8 + lane / 4];
        float2 zero{0.f, 0.f};
        if (ZEROS) zero = zeros_here[(u * P::RUNS + run) * 8 + lane / 4];
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            float value = U::value(slice[t][c]);
            if constexpr (ZEROS) {
              const int at = (((unit + u) * P::RUNS + run) * TILES + t) * 8;
              value = fmaf(c < 2 ? -zero.x : -zero.y, x_sums[at + lane % 4 * 2 + c % 2], value);
            }
            sums[0][t][c] = fmaf(value, c < 2 ? scale.x : scale.y, sums[0][t][c]);
          }
      };
      // pairs of digits of the rows lane / 4 and lane / 4 + 8, times scales of groups
      float scaled[2] = {0.f, 0.f};
      auto apply_digits = [&](const PartialSum(&slice)[4], int u, int run) {
        const float2 scale = scales_here[(u * P::RUNS + run) * 8 + lane / 4];
        scaled[0] = fmaf(fmaf(U::value(slice[1]), 256.f, U::value(slice[0])), scale.x, scaled[0]);
        scaled[1] = fmaf(fmaf(U::value(slice[3]), 256.f, U::value(slice[2])), scale.y, scaled[1]);
      };
      PartialSum digits[CHAINS][TILES][4] = {};
#pragma unroll
      for (int u = 0; u < UNITS; u += U::HELD_UNITS) {
        uint32_t held[TILES][U::HELD_UNITS * U::STEPS * U::STEP_WORDS];
#pragma unroll
        for (int t = 0; t < TILES; t++) U::hold(x_start[t] + (unit + u) * U::BYTES, held[t]);
#pragma unroll
        for (int v = 0; v < U::HELD_UNITS; v++) {
          const uint4 four = w[d][u + v];
          const uint32_t words[4] = {four.x, four.y, four.z, four.w};
          PartialSum slice[TILES][4];
#pragma unroll
          for (int j = 0; j < U::STEPS; j++) {
            const uint32_t* x[TILES];
#pragma unroll
            for (int t = 0; t < TILES; t++) x[t] = held[t] + (v * U::STEPS + j) * U::STEP_WORDS;
            if constexpr (IN_DIGITS && !GROUPED) {
              U::step(words, j, x, digits[((u + v) * U::STEPS + j) % CHAINS]);
            } else if constexpr (!GROUPED) {
              U::step(words, j, x, sums[((u + v) * U::STEPS + j) % CHAINS]);
            } else {
              if (j % P::RUN == 0)
#pragma unroll
                for (int i = 0; i < 4 * TILES; i++) slice[i / 4][i % 4] = U::ZERO;
              U::step(words, j, x, slice);
              if (j % P::RUN != P::RUN - 1) continue;
              if constexpr (IN_DIGITS) apply_digits(slice[0], u + v, j / P::RUN);
              else apply(slice, u + v, j / P::RUN);
            }
          }
        }
      }
      ask(d);
      if constexpr (IN_DIGITS) {
        const float step = steps[unit / UNITS] * (lane % 2 ? 65536.f : 1.f);
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
          if constexpr (!GROUPED) {
            int pair[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < 2 * CHAINS; i++) pair[i % 2] += digits[i / 2][0][c + i % 2];
            scaled[c / 2] = fmaf(static_cast<float>(pair[1]), 256.f, static_cast<float>(pair[0]));
          }
          sums[0][0][c] = fmaf(scaled[c / 2], step, sums[0][0][c]);
        }
      }
      unit += UNITS;
      if (unit < units) continue;
      if constexpr (IN_DIGITS) {
        // a token's two pairs of digits are in two lanes; its sum goes where that of a row of x would
        for (int c = 0; c < 4; c += 2) {
          Sum& to = slot[(lane % 4 / 2 - lane % 4 * 2) * PITCH + c * 4];
          Sum sum = sums[0][0][c];
          sum += __uint_as_float(__shfl_sync(~0u, __float_as_uint(sum), lane ^ 1));
          if (lane % 2 || lane % 4 / 2 >= m_rows) continue;
          if (odd)
            sum = plain_sum<BITS, GROUPED>(task, first_row + row, lane / 4 + c * 4, lane % 4 / 2,
                                           first_unit, units);
          to = sum;
        }
      } else
      // c: row lane / 4 + 8 (c / 2) of W, row 8 t + 2 (lane % 4) + c % 2 of x
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          if (8 * t + lane % 4 * 2 + c % 2 >= m_rows) continue;
          Sum& to = slot[(8 * t + c % 2) * PITCH + c / 2 * 8];
          Sum sum = sums[0][t][c];
#pragma unroll
          for (int chain = 1; chain < FINAL; chain++) sum += sums[chain][t][c];
          to = sum;
        }
      clear();
      unit = 0, row += warps_n, slot += warps_n * outputs.slot_step;
    }
  }

  outputs.finish(which * cluster_size);
}
