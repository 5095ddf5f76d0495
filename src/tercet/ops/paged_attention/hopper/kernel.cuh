// y = softmax(cap(scale q k^T)) v of up to 16 rows of q that share a key head, keys and values in blocks:
// bound by reading them.
//
// A cluster of blocks takes a row tile of one key head of one sequence; its blocks and their warps take the
// positions, 16 at a time, which lie in one block of the cache. A warp copies keys and values several tiles ahead
// into a pipeline of its own, so it waits for nobody. With
//
//   S^T [16 positions, rows] = K q^T        O^T [D, rows] += V^T P^T
//
// up to eight rows take half the products. Shares P go into the product in two parts, the rounded share and what
// was rounded away. In the end the sums of warps are added in shared memory, those of blocks through the
// cluster's, in a fixed order. Long caches of few key heads are split over several clusters, whose sums `merge`
// adds.
//
// Codes become 16-bit floats on their way from the pipeline to the tensor cores. A lane's four neighbours
// are two of the product's columns and two eight further, so columns stand there in another order, q's likewise.
// A position's scales lie behind its stage's codes: the key's multiplies scores, the value's shares.
//
// Codes of 4 bits have step and least of each group of 32 columns, two of the product's: a group's sum of codes has
// an accumulator of its own, times the step, and the least multiplies the sum of q there. Shares are multiplied by
// each group's steps before their products; what leasts add is the same for all columns of a group, and is added
// at the end.
//
// One token takes a few microseconds, of which fetching instructions is a large part: short code counts.
#pragma once
#include <type_traits>

#include "codes.cuh"
#include "task.cuh"

constexpr int TILE = 16;  // positions of a warp at a time
constexpr int MOST_BLOCKS = 16;  // of a cluster

// of a block's shared memory, in bytes: WIDTH of a head, ROWS of q, WARPS of the block, BLOCKS side by side on a
// multiprocessor, C what keys and values are
template <int WIDTH, int ROWS, int WARPS, int BLOCKS, class C> struct Memory {
  static constexpr bool CODES = C::BITS < 16, FOUR_BITS = C::BITS == 4;
  static constexpr int TENSOR = TILE * WIDTH * C::BITS / 8;  // keys, or values, of a tile
  static constexpr int SCALES = FOUR_BITS ? WIDTH / 8 : 4;    // of a position's key, or its value
  static constexpr int STAGE = 2 * TENSOR + (CODES ? 2 * TILE * SCALES : 0);
  // of codes as many as take what three or five of floats do, or half of that
  static constexpr int STAGES = !CODES ? (WIDTH == 64 ? 5 : 3) : (BLOCKS == 4 ? 13056 : WIDTH == 64 ? 19800 : 25600) / STAGE;
  static constexpr int PIPELINE = STAGES * STAGE;         // of a warp; in the end its sums
  static constexpr int PITCH = WIDTH + 4;                 // floats, of a row of sums
  static constexpr int RECEIVED = WARPS * PIPELINE;       // what the block adds of all blocks
  static constexpr int STATES = RECEIVED + ROWS * WIDTH * 4;  // tops and totals of warps and blocks
  static constexpr int END = STATES + (WARPS + MOST_BLOCKS) * ROWS * 8;
  static_assert(ROWS * PITCH * 4 <= PIPELINE);
};

// two rounded neighbours, and what was rounded away
template <class X> __device__ __forceinline__ void in_two_parts(float a, float b, uint32_t& coarse, uint32_t& fine) {
  if constexpr (std::is_same_v<X, __half>) {
    const __half2 rounded = __floats2half2_rn(a, b);
    const float2 back = __half22float2(rounded);
    const __half2 rest = __floats2half2_rn(a - back.x, b - back.y);
    coarse = reinterpret_cast<const uint32_t&>(rounded), fine = reinterpret_cast<const uint32_t&>(rest);
  } else {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(a, b);
    coarse = reinterpret_cast<const uint32_t&>(rounded);
    const __nv_bfloat162 rest = __floats2bfloat162_rn(a - __uint_as_float(coarse << 16),
                                                      b - __uint_as_float(coarse & 0xffff0000u));
    fine = reinterpret_cast<const uint32_t&>(rest);
  }
}
template <class X> __device__ __forceinline__ void mma(float (&c)[4], const uint32_t* a, const uint32_t* b) {
  if constexpr (std::is_same_v<X, __half>) mma_float16(c, a, b);
  else mma_bfloat16(c, a, b);
}
__device__ __forceinline__ float across(float value, int lane) {
  return __uint_as_float(__shfl_sync(~0u, __float_as_uint(value), lane));
}
// what a share, or a sum with the maximum `top`, counts beside others: nothing if it has seen nothing
__device__ __forceinline__ float weight_of(float top, float most) {
  return power_of_two(top - (most == -INFINITY ? 0.f : most));
}
// soft_cap tanh(score / soft_cap), by the exponential of a number below 0, which cannot overflow
__device__ __noinline__ float capped(float score, float soft_cap) {
  const float shrunk = power_of_two(-2.88539008f * fabsf(score) / soft_cap);
  return copysignf((1.f - shrunk) * reciprocal(1.f + shrunk) * soft_cap, score);
}

// two columns of a row: shares times values, relative to the row's maximum, and the shares
struct Sum {
  float most, all;
  float2 pair;
};
__device__ __forceinline__ Sum add(const float2* states, int64_t states_step, const void* pairs, int64_t pairs_bytes,
                                   int count) {
  Sum sum = {-INFINITY, 0.f, make_float2(0.f, 0.f)};
#pragma unroll 4
  for (int i = 0; i < count; i++) sum.most = fmaxf(sum.most, states[i * states_step].x);
#pragma unroll 4
  for (int i = 0; i < count; i++) {
    const float2 state = states[i * states_step];
    const float2 addend = *reinterpret_cast<const float2*>(static_cast<const char*>(pairs) + i * pairs_bytes);
    const float weight = weight_of(state.x, sum.most);
    sum.all = fmaf(state.y, weight, sum.all);
    sum.pair.x = fmaf(addend.x, weight, sum.pair.x), sum.pair.y = fmaf(addend.y, weight, sum.pair.y);
  }
  return sum;
}
template <class X> __device__ __forceinline__ void store(void* y, int64_t pair, const Sum& sum) {
  const float over = sum.all == 0.f ? 0.f : reciprocal(sum.all), one = sum.pair.x * over, other = sum.pair.y * over;
  if constexpr (std::is_same_v<X, __half>) static_cast<__half2*>(y)[pair] = __floats2half2_rn(one, other);
  else static_cast<__nv_bfloat162*>(y)[pair] = __floats2bfloat162_rn(one, other);
}

template <int WIDTH, int ROWS, int WARPS, int BLOCKS, class X, class C>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS) attend(const __grid_constant__ Task task) {
  using M = Memory<WIDTH, ROWS, WARPS, BLOCKS, C>;
  constexpr bool CODES = M::CODES, FOUR_BITS = M::FOUR_BITS;
  constexpr int GROUPS = FOUR_BITS ? WIDTH / 32 : 0, HIGH = WIDTH / 32;  // of columns; steps of the second half
  // shares of float16 times scales may be less than it has
  using V = std::conditional_t<CODES, __nv_bfloat16, X>;
  constexpr float LOG2_E = 1.44269504f;
  constexpr int ROW_TILES = ROWS / 8, STEPS = WIDTH / 16, STAGES = M::STAGES;
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x, warp = __shfl_sync(~0u, static_cast<int>(threadIdx.y), 0);
  const int thread = warp * 32 + lane, eighth = lane / 4, quarter = lane % 4;
  const int rank = blockIdx.x, blocks_log2 = task.blocks_log2;
  const unsigned splits = task.splits, split = blockIdx.y % splits;
  const unsigned row_tile = blockIdx.y / splits % static_cast<unsigned>(task.row_tiles);
  const unsigned pair = blockIdx.y / splits / static_cast<unsigned>(task.row_tiles);
  const int group = pair % static_cast<unsigned>(task.groups), batch = pair / static_cast<unsigned>(task.groups);
  const int first_row = row_tile * ROWS, rows = min(ROWS, task.fresh * task.shared - first_row);
  // which of its sequence's new positions a row is of, and which head
  const auto fresh_of = [&](int row) { return static_cast<int>((first_row + row) * task.shared_inverse >> 20); };
  const auto head_of = [&](int row) { return group * task.shared + first_row + row - fresh_of(row) * task.shared; };

  if (blocks_log2) cluster_arrive();
  if (task.pdl) {
    launch_dependents();
    wait_for_previous_kernel();
  }
  const int length = task.lengths[batch], begin = length - task.fresh;
  // a lane's row of q is eighth + 8 t; of each 16 columns it has 2 quarter + 8 j and the next, or beside codes
  // 4 quarter + j and the next but one
  uint32_t q[ROW_TILES][STEPS][2];
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++) {
    const int row = eighth + 8 * t;
    const uint16_t* const from = static_cast<const uint16_t*>(task.q) + batch * task.q_b + fresh_of(row) * task.q_q +
                                 head_of(row) * task.q_h + quarter * (CODES ? 4 : 2);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      uint32_t two[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < 2; j++)
        if (row < rows) two[j] = *reinterpret_cast<const uint32_t*>(from + s * 16 + j * (CODES ? 2 : 8));
      q[t][s][0] = CODES ? __byte_perm(two[0], two[1], 0x5410) : two[0];
      q[t][s][1] = CODES ? __byte_perm(two[0], two[1], 0x7632) : two[1];
    }
  }
  // the sums of a row of q over each group of columns, and what shares times leasts add up to
  float q_sums[ROW_TILES][GROUPS + 1][4] = {}, leasts[ROW_TILES][GROUPS + 1][2] = {};
  if constexpr (FOUR_BITS) {
    const uint32_t one = std::is_same_v<X, __half> ? 0x3c003c00u : 0x3f803f80u, ones[4] = {one, one, one, one};
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
      for (int g = 0; g < GROUPS; g++)
        mma<X>(q_sums[t][g], ones, q[t][g]), mma<X>(q_sums[t][g], ones, q[t][HIGH + g]);
  }
  const int stop = min(min(length, begin + fresh_of(rows - 1) + 1), task.table * task.block);
  const int start = task.window > 0 ? max(0, begin + fresh_of(0) - task.window + 1) : 0;
  const int tiles = max(0, (stop + TILE - 1) / TILE - start / TILE);
  const unsigned share = split << blocks_log2 | rank, shares = splits << blocks_log2;
  const auto begin_of = [&](unsigned share) { return static_cast<int>(start / TILE + tiles * share / shares); };
  const int tiles_end = begin_of(share + 1);

  float sums[STEPS][ROW_TILES][4] = {};
  float top[ROW_TILES][2], total[ROW_TILES][2] = {};
#pragma unroll
  for (int i = 0; i < 2 * ROW_TILES; i++) top[i / 2][i % 2] = -INFINITY;
  // A row's 16 bytes `chunk` lie at chunk ^ swizzle(row), so that eight rows are read without bank conflicts. A lane
  // copies one of them, of every so many rows. Instead of positions that nobody sees others are copied: what is
  // there may be no number.
  constexpr int ELEMENT = C::BITS == 16 ? 2 : 1;  // bytes
  constexpr int PITCH = WIDTH * C::BITS / 8, CHUNKS = PITCH / 16, AT_ONCE = 32 / CHUNKS;
  const auto swizzle = [](int row) { return PITCH == 32 ? row / 4 % 2 : PITCH == 64 ? row / 2 % 4 : row % 8; };
  unsigned char* const pipeline = memory + warp * M::PIPELINE;
  const uint32_t pipeline_at = shared_address(pipeline);
  const int copied_row = lane / CHUNKS, copied_chunk = lane % CHUNKS;
  uint32_t known_stages = 0;  // whether there is a block
  int asked = begin_of(share) + warp, tile = asked, into = 0, stage = 0;
#pragma unroll 1
  for (int ahead = 0;; ahead++) {
    const unsigned entry = static_cast<unsigned>(asked * TILE) / static_cast<unsigned>(task.block);
    const int block = asked < tiles_end ? task.blocks[batch * task.blocks_b + entry] : -1;
    known_stages &= ~(1u << into);
    __syncwarp();
    if (block >= 0 && block < task.count) {
      known_stages |= 1u << into;
      const int before = entry * task.block;  // positions, of the blocks before
      const uint32_t to = pipeline_at + into * M::STAGE;
      const char* const keys = static_cast<const char*>(task.keys) +
                               (block * task.k_p + group * task.k_g) * ELEMENT + copied_chunk * 16;
      const char* const values = static_cast<const char*>(task.values) +
                                 (block * task.v_p + group * task.v_g) * ELEMENT + copied_chunk * 16;
      const auto position = [&](int row) { return min(max(asked * TILE + row, start), stop - 1) - before; };
#pragma unroll
      for (int i = 0; i < TILE; i += AT_ONCE) {
        const int row = i + copied_row, from = position(row);
        const uint32_t there = to + row * PITCH + (copied_chunk ^ swizzle(row)) * 16;
        copy_async(there, keys + from * task.k_s * ELEMENT);
        copy_async(there + M::TENSOR, values + from * task.v_s * ELEMENT);
      }
      if constexpr (CODES) {
        // half the lanes copy keys' scales, half values'
        const Scales& of = lane < TILE ? task.key_scales : task.value_scales;
        const int64_t at = block * of.p + group * of.g + position(lane % TILE) * of.s;
        copy_few_async<M::SCALES>(to + 2 * M::TENSOR + lane * M::SCALES,
                                  static_cast<const char*>(of.first) + at * (FOUR_BITS ? 2 : 4));
      }
    }
    close_group();
    asked += WARPS, into = into == STAGES - 1 ? 0 : into + 1;
    if (ahead < STAGES - 1) continue;
    if (tile >= tiles_end) break;
    groups_arrived<STAGES - 1>();
    __syncwarp();
    if (known_stages >> stage & 1) {
      // lane l gives the address of row l % 8 of the (l / 8)th matrix of four
      const int half = lane / 8 % 2, other = lane / 16;
      const uint32_t keys = pipeline_at + stage * M::STAGE, key_row = lane % 8 + 8 * half;
      const uint32_t values = keys + M::TENSOR, value_row = CODES ? key_row : lane % 8 + 8 * other;
      float scores[ROW_TILES][4] = {};
      float key_scale[2] = {task.scale, task.scale}, value_scale[2];
      const unsigned char* const scales_at = pipeline + stage * M::STAGE + 2 * M::TENSOR;
      // step and least of group g of a position's key, or from TILE on its value
      const auto pair_of = [&](int row, int g) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(scales_at + row * M::SCALES + g * 4);
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
      };
      if constexpr (FOUR_BITS) {
#pragma unroll
        for (int g = 0; g < GROUPS; g += 2) {
          uint32_t words[4];
          load_matrices(keys + key_row * PITCH + ((g + other) ^ swizzle(key_row)) * 16, words);
#pragma unroll
          for (int next = 0; next < 2; next++) {
            const uint32_t* const w = words + 2 * next;
            const uint32_t low[4] = {C::template at<0>(w[0], X()), C::template at<0>(w[1], X()),
                                     C::template at<2>(w[0], X()), C::template at<2>(w[1], X())};
            const uint32_t high[4] = {C::template at<1>(w[0], X()), C::template at<1>(w[1], X()),
                                      C::template at<3>(w[0], X()), C::template at<3>(w[1], X())};
            const float2 pairs[2] = {pair_of(eighth, g + next), pair_of(eighth + 8, g + next)};
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
              float codes[4] = {};
              mma<X>(codes, low, q[t][g + next]), mma<X>(codes, high, q[t][HIGH + g + next]);
#pragma unroll
              for (int c = 0; c < 4; c++)
                scores[t][c] = fmaf(codes[c], pairs[c / 2].x,
                                    fmaf(q_sums[t][g + next][c % 2], pairs[c / 2].y, scores[t][c]));
            }
          }
        }
      } else if constexpr (CODES) {
        const float* const scales = reinterpret_cast<const float*>(scales_at);
#pragma unroll
        for (int i = 0; i < 2; i++)
          key_scale[i] *= scales[eighth + 8 * i], value_scale[i] = scales[TILE + eighth + 8 * i];
#pragma unroll
        for (int s = 0; s < STEPS; s += 2) {
          // rows 0 to 7 and 8 to 15 of 16 columns, and of the next 16
          uint32_t words[4];
          load_matrices(keys + key_row * PITCH + ((s + other) ^ swizzle(key_row)) * 16, words);
#pragma unroll
          for (int next = 0; next < 2; next++) {
            const uint32_t* const w = words + 2 * next;
            const uint32_t a[4] = {C::even(w[0], X()), C::even(w[1], X()), C::odd(w[0], X()), C::odd(w[1], X())};
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) mma<X>(scores[t], a, q[t][s + next]);
          }
        }
      } else {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
          uint32_t a[4];
          load_matrices(keys + key_row * PITCH + ((2 * s + other) ^ swizzle(key_row)) * 16, a);
#pragma unroll
          for (int t = 0; t < ROW_TILES; t++) mma<X>(scores[t], a, q[t][s]);
        }
      }
      // c: position eighth + 8 (c / 2), row 2 quarter + c % 2 + 8 t
      uint32_t coarse[ROW_TILES][2], fine[ROW_TILES][2];
      // shares as the product takes them, times what each position has
      const auto set_shares = [&](int t, float first, float second) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float by = i ? second : first;
          in_two_parts<V>(scores[t][2 * i] * by, scores[t][2 * i + 1] * by, coarse[t][i], fine[t][i]);
          coarse[t][i] = transposed(coarse[t][i]), fine[t][i] = transposed(fine[t][i]);
        }
      };
#pragma unroll
      for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
        for (int c = 0; c < 4; c++) scores[t][c] *= key_scale[c / 2];
        if (task.soft_cap != 0.f)
#pragma unroll
          for (int c = 0; c < 4; c++) scores[t][c] = capped(scores[t][c], task.soft_cap);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int last = begin + fresh_of(2 * quarter + i + 8 * t);
          float most = top[t][i];
#pragma unroll
          for (int c = i; c < 4; c += 2) {
            const int n = tile * TILE + eighth + 8 * (c / 2);
            const bool seen = n <= last && n < stop && (task.window <= 0 || n > last - task.window);
            scores[t][c] = seen ? scores[t][c] * LOG2_E : -INFINITY;
            most = fmaxf(most, scores[t][c]);
          }
#pragma unroll
          for (int step = 4; step < 32; step *= 2) most = fmaxf(most, across(most, lane ^ step));
          const float kept = weight_of(top[t][i], most);
          top[t][i] = most;
          scores[t][i] = weight_of(scores[t][i], most), scores[t][i + 2] = weight_of(scores[t][i + 2], most);
          total[t][i] = fmaf(total[t][i], kept, scores[t][i] + scores[t][i + 2]);
#pragma unroll
          for (int d = 0; d < STEPS; d++) sums[d][t][i] *= kept, sums[d][t][i + 2] *= kept;
#pragma unroll
          for (int g = 0; g < GROUPS; g++) leasts[t][g][i] *= kept;
        }
        if constexpr (CODES && !FOUR_BITS) set_shares(t, value_scale[0], value_scale[1]);
        if constexpr (!CODES) set_shares(t, 1.f, 1.f);
      }
      const auto add_values = [&](int d, const uint32_t* a) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) mma<V>(sums[d][t], a, coarse[t]), mma<V>(sums[d][t], a, fine[t]);
      };
      if constexpr (FOUR_BITS) {
#pragma unroll
        for (int g = 0; g < GROUPS; g += 2) {
          uint32_t words[4];
          load_transposed(values + value_row * PITCH + ((g + other) ^ swizzle(value_row)) * 16, words);
#pragma unroll
          for (int next = 0; next < 2; next++) {
            const uint32_t* const w = words + 2 * next;
            const uint32_t low[4] = {C::template at<0>(w[0], V()), C::template at<2>(w[0], V()),
                                     C::template at<0>(w[1], V()), C::template at<2>(w[1], V())};
            const uint32_t high[4] = {C::template at<1>(w[0], V()), C::template at<3>(w[0], V()),
                                      C::template at<1>(w[1], V()), C::template at<3>(w[1], V())};
            const float2 pairs[2] = {pair_of(TILE + eighth, g + next), pair_of(TILE + eighth + 8, g + next)};
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
              for (int i = 0; i < 2; i++)
                leasts[t][g + next][i] =
                    fmaf(scores[t][i], pairs[0].y, fmaf(scores[t][i + 2], pairs[1].y, leasts[t][g + next][i]));
              set_shares(t, pairs[0].x, pairs[1].x);
            }
            add_values(g + next, low), add_values(HIGH + g + next, high);
          }
        }
      } else if constexpr (CODES) {
#pragma unroll
        for (int d = 0; d < STEPS; d += 2) {
          // two neighbours of 16 columns are rows i and i + 8 of the product: positions 0 to 7 and 8 to 15 of 16
          // columns, and of the next 16
          uint32_t words[4];
          load_transposed(values + value_row * PITCH + ((d + other) ^ swizzle(value_row)) * 16, words);
#pragma unroll
          for (int next = 0; next < 2; next++) {
            const uint32_t* const w = words + 2 * next;
            const uint32_t a[4] = {C::even(w[0], V()), C::odd(w[0], V()), C::even(w[1], V()), C::odd(w[1], V())};
            add_values(d + next, a);
          }
        }
      } else {
#pragma unroll
        for (int d = 0; d < STEPS; d++) {
          uint32_t a[4];
          load_transposed(values + value_row * PITCH + ((2 * d + half) ^ swizzle(value_row)) * 16, a);
          add_values(d, a);
        }
      }
    }
    tile += WARPS, stage = stage == STAGES - 1 ? 0 : stage + 1;
  }

  __syncwarp();  // the pipeline is read no longer
  // tops and totals of the block's warps, and then of all blocks: [warp or block][row]
  float2* const states = reinterpret_cast<float2*>(memory + M::STATES);
  float* const own = reinterpret_cast<float*>(pipeline);
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = 2 * quarter + i + 8 * t;
#pragma unroll
      for (int step = 4; step < 32; step *= 2) total[t][i] += across(total[t][i], lane ^ step);
      if (eighth == 0) states[warp * ROWS + row] = make_float2(top[t][i], total[t][i]);
#pragma unroll
      for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int step = 4; step < 32; step *= 2) leasts[t][g][i] += across(leasts[t][g][i], lane ^ step);
#pragma unroll
      for (int d = 0; d < 2 * STEPS; d++) {
        const int column = CODES ? d / 2 * 16 + eighth * 2 + d % 2 : d * 8 + eighth;
        float sum = sums[d / 2][t][i + d % 2 * 2];
        if constexpr (FOUR_BITS) sum += leasts[t][d / 2 % HIGH][i];
        own[row * M::PITCH + column] = sum;
      }
    }
  __syncthreads();
  // Two neighbours of a row at a time: the block adds its warps, and then one block all blocks. Each has a run of
  // every row's columns to add.
  constexpr int PAIRS = WIDTH / 2, PAIRS_LOG2 = WIDTH == 64 ? 5 : 6;
  static_assert(PAIRS == 1 << PAIRS_LOG2);
  const int run_log2 = PAIRS_LOG2 - blocks_log2, run = 1 << run_log2;
  float2* const received = reinterpret_cast<float2*>(memory + M::RECEIVED);  // [block][row][run]
  float2* const block_states = states + WARPS * ROWS;
  const auto add_warps = [&](int row, int column) {
    return add(states + row, ROWS, memory + (row * M::PITCH + column * 2) * 4, M::PIPELINE, WARPS);
  };
  if (blocks_log2) {
    cluster_wait();
#pragma unroll 1
    for (int i = thread; i < rows * PAIRS; i += WARPS * 32) {
      const int row = i / PAIRS, column = i % PAIRS, to = column >> run_log2, in_run = column & (run - 1);
      const Sum sum = add_warps(row, column);
      put_there(shared_address(received + (rank * rows + row) * run + in_run), to, sum.pair.x, sum.pair.y);
      if (in_run == 0) put_there(shared_address(block_states + rank * ROWS + row), to, sum.most, sum.all);
    }
    cluster_arrive(), cluster_wait();
  }
#pragma unroll 1
  for (int i = thread; i < rows * run; i += WARPS * 32) {
    const int row = i >> run_log2, column = rank * run + (i & (run - 1));
    const Sum sum = blocks_log2 ? add(block_states + row, ROWS, received + i, rows * run * 8, 1 << blocks_log2)
                                : add_warps(row, column);
    const int64_t token = static_cast<int64_t>(batch) * task.fresh + fresh_of(row);
    const int64_t at = token * task.groups * task.shared + head_of(row);
    if (splits == 1) {
      store<X>(task.y, at * PAIRS + column, sum);
      continue;
    }
    const int64_t there = static_cast<int64_t>(split) * task.batch * task.fresh * task.groups * task.shared + at;
    task.sums[there * PAIRS + column] = sum.pair;
    if (column == 0) task.states[there] = make_float2(sum.most, sum.all);
  }
}

// what the clusters of a row have added up: a row of y a block, two columns a thread
template <class X> __global__ void __launch_bounds__(64) merge(const __grid_constant__ Task task) {
  const int column = threadIdx.y * 32 + threadIdx.x, pairs = task.width / 2;
  const int64_t at = blockIdx.y, rows = gridDim.y;
  if (task.pdl) {
    launch_dependents();
    wait_for_previous_kernel();
  }
  const Sum sum =
      add(task.states + at, rows, task.sums + at * pairs + column, rows * pairs * 8, task.splits);
  store<X>(task.y, at * pairs + column, sum);
}
