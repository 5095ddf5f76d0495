// linear_packed for many tokens on Hopper: y [M, N] = x [M, K] W [N, K]^T, x int8, W 2, 4 or 8 bits.
//
// The product is computed as y^T = W x^T, so that the packed weights are the operand that wgmma
// takes from registers: 16 bytes of the `fragments` layout are, after a shift and a mask, the A
// registers of 4, 2 or 1 steps of 32 columns. Nothing is ever decoded into memory. x is the
// operand in shared memory, tokens are the columns of the accumulator.
//
//   warpgroup 0      one thread asks the copy engine for x (T tokens) and W (ROWS rows), 128
//                    columns a stage, in a ring; blocks of a cluster share the tokens and send
//                    each other their part of x
//   warpgroups 1, 2  MB x 64 rows each: decode the next step while the tensor cores run this one
//
// Work is whole tiles, then, so that no multiprocessor idles, the columns of the remaining tiles
// cut into equal parts (stream-K). Parts are integers: whoever comes last adds them up, in any
// order, to the same bits.
//
//   y = (float(sum of products) * (w_scale[n] * 2^-(8 - bits))) * x_scale[m] + bias[n] + residual
//
// every operation rounded to float32 in that order, then once to the type of y. Where scales are of
// groups of 64 or 128 columns, the sum is total = fma(float(sum of group), scale * 2^-.., total)
// over the groups in order, y = total * x_scale[m] + ..., and no tile is cut.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int THREADS = 384, GROUP_THREADS = 128, WARPS = 8;
constexpr int DEPTH = 128;  // columns a stage
constexpr int MOST_SHARED = 227 * 1024 - 64;  // dynamic; a few bytes are static
constexpr int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2;

// how the tiles are dealt out; the same in producers and consumers
struct Plan {
  int tiles_m, tiles_n;  // a tile of a cluster: T tokens, CLUSTER * ROWS rows
  int depth;             // stages a tile
  int whole;             // so many tiles are not cut
  int part;              // stages a cluster of the others
  int band;              // tiles of tokens that are walked together, for the L2's sake
};

struct Result {
  const void *w_scale, *bias, *residual;
  const float* x_scale;
  void* y;
  int w_scale_type, bias_type, type;  // of y and of the residual
  int tokens, rows, groups;
  int4* parts;
  int* arrivals;  // zero before and after
};

struct Walk {
  int tile, first, last;  // stages [first, last) of a tile
  int next_tile, at, end;
  __device__ Walk(const Plan& plan, int cluster) : next_tile(cluster) {
    const int rest = (plan.tiles_m * plan.tiles_n - plan.whole) * plan.depth;
    at = min(cluster * plan.part, rest);
    end = min(at + plan.part, rest);
  }
  __device__ bool next(const Plan& plan, int clusters) {
    if (next_tile < plan.whole) {
      tile = next_tile;
      next_tile += clusters;
      first = 0;
      last = plan.depth;
      return true;
    }
    if (at >= end) return false;
    tile = plan.whole + at / plan.depth;
    first = at % plan.depth;
    last = min(plan.depth, first + end - at);
    at += last - first;
    return true;
  }
};

struct Place {
  int m, n;
  __device__ Place(const Plan& plan, int tile) {
    const int band = tile / (plan.band * plan.tiles_n), within = tile % (plan.band * plan.tiles_n);
    const int height = min(plan.band, plan.tiles_m - band * plan.band);
    m = band * plan.band + within % height;
    n = within / height;
  }
};

template <int BITS_, int GROUP_, int MB_, int T_, int CLUSTER_>
struct Shape {
  static constexpr int BITS = BITS_, GROUP = GROUP_, MB = MB_, T = T_, CLUSTER = CLUSTER_;
  static constexpr int ROWS = 2 * MB * 64, UNITS = BITS / 2, STEPS_A_UNIT = 8 / BITS;
  static constexpr int X_BYTES = T * DEPTH, W_BYTES = ROWS * DEPTH / 8 * BITS;
  // a warp turns its rows of 32 tokens (16 where they are floats) into rows of y
  static constexpr int PITCH = MB * 32 + 16, WIDE_PITCH = MB * 16 + 4;
  static constexpr int TURN = T < 32 ? T : 32, WIDE_TURN = 16;
  static constexpr int TURN_BYTES =
      TURN * PITCH > WIDE_TURN * WIDE_PITCH * 4 ? TURN * PITCH : WIDE_TURN * WIDE_PITCH * 4;
  // the ring: as deep as there is room, 1 KiB being left for its barriers and for alignment each
  static constexpr int ROOM = MOST_SHARED - 2048 - WARPS * TURN_BYTES;
  static constexpr int FIT = ROOM / (X_BYTES + W_BYTES), STAGES = FIT < 16 ? FIT : 16;
  static constexpr int BYTES = MOST_SHARED - ROOM + STAGES * (X_BYTES + W_BYTES);
  // The first group of warps keeps so many stages ahead of the second, so that one of them feeds
  // the tensor cores while the other turns sums into y. It pays where tiles follow each other and
  // take long; elsewhere it would only delay the end.
  static constexpr int AHEAD = T >= 128 ? STAGES / 2 : 1;
  // Steps of 32 columns that are started together: two where tokens are few, for they are short; a
  // group of scales where there is one.
  static constexpr int JOIN = GROUP ? GROUP / 32 : T >= 128 ? 1 : 2;
};

template <int BITS>
__device__ uint32_t signed_bytes(uint32_t word, int field) {
  if (BITS == 8) return word;
  constexpr uint32_t MASK = BITS == 4 ? 0xF0F0F0F0 : 0xC0C0C0C0;
  return word << (8 - BITS - BITS * field) & MASK;
}

__device__ float number(const void* from, int type, int64_t i) {
  if (type == FLOAT32) return __ldg(static_cast<const float*>(from) + i);
  if (type == FLOAT16) return __half2float(__ldg(static_cast<const __half*>(from) + i));
  return __bfloat162float(__ldg(static_cast<const __nv_bfloat16*>(from) + i));
}

__device__ uint32_t two(float low, float high, int type) {
  uint32_t both;
  if (type == FLOAT16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Gives up these registers' sums, or takes everybody's: whether this warpgroup came last of those
// that share the tile. `slot` 0 is a cluster's first part, 1 its last.
template <class S>
__device__ bool take_over(int (&sums)[S::MB][S::T / 2], const Plan& plan, const Result& result,
                          int tile, int cluster, int rank, int group, int* ticket) {
  constexpr int VECTORS = S::MB * S::T / 8;
  const int thread = threadIdx.x % GROUP_THREADS, cut = tile - plan.whole;
  const int first = cut * plan.depth / plan.part;
  const int last = (cut * plan.depth + plan.depth - 1) / plan.part;
  const auto parts_of = [&](int owner) {
    const int slot = owner * plan.part / plan.depth == cut ? 0 : 1;
    return result.parts +
           (((owner * 2ll + slot) * S::CLUSTER + rank) * 2 + group) * VECTORS * GROUP_THREADS +
           thread;
  };
  int4* mine = parts_of(cluster);
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    const int mb = v / (S::T / 8), i = v % (S::T / 8) * 4;
    __stcg(mine + v * GROUP_THREADS,
           make_int4(sums[mb][i], sums[mb][i + 1], sums[mb][i + 2], sums[mb][i + 3]));
  }
  __threadfence();
  meet(1 + group, GROUP_THREADS);
  int* arrivals = result.arrivals + (cut * S::CLUSTER + rank) * 2 + group;
  if (thread == 0) *ticket = atomicAdd(arrivals, 1);
  meet(1 + group, GROUP_THREADS);
  if (*ticket != last - first) return false;
  __threadfence();
  if (thread == 0) *arrivals = 0;
  for (int owner = first; owner <= last; owner++) {
    if (owner == cluster) continue;
    const int4* theirs = parts_of(owner);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
      const int mb = v / (S::T / 8), i = v % (S::T / 8) * 4;
      const int4 more = __ldcg(theirs + v * GROUP_THREADS);
      sums[mb][i] += more.x;
      sums[mb][i + 1] += more.y;
      sums[mb][i + 2] += more.z;
      sums[mb][i + 3] += more.w;
    }
  }
  return true;
}

// of a row's group, times what the place of codes in their bytes divides by; 0 beyond the rows
template <class S>
__device__ float weight_scale(const Result& result, int row, int group) {
  if (row >= result.rows || group >= result.groups) return 0.f;
  const int64_t at = (static_cast<int64_t>(row / 16) * result.groups + group) * 16 + row % 16;
  return __fmul_rn(number(result.w_scale, result.w_scale_type, at), 1.f / (1 << (8 - S::BITS)));
}

// One warp's 16 MB rows of T tokens to y. `turn` is memory of its own.
template <class S, typename Sum>
__device__ void write(const Sum (&sums)[S::MB][S::T / 2], const Result& result, int token0,
                      int row0, uint8_t* turn) {
  const int lane = threadIdx.x % 32;
  const int64_t pitch = result.rows;
  float w_scale[S::MB][2], bias[S::MB][2];
#pragma unroll
  for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = row0 + mb * 16 + h * 8 + lane / 4;
      const bool inside = row < result.rows;
      w_scale[mb][h] = S::GROUP ? 1.f : weight_scale<S>(result, row, 0);
      bias[mb][h] = inside && result.bias ? number(result.bias, result.bias_type, row) : 0.f;
    }
  const auto value = [&](int mb, int i, float x_scale) {
    const int h = i / 2 % 2;
    const float sum = S::GROUP ? sums[mb][i] : __fmul_rn(static_cast<float>(sums[mb][i]), w_scale[mb][h]);
    const float y = __fmul_rn(sum, x_scale);
    return result.bias ? __fadd_rn(y, bias[mb][h]) : y;
  };
  const auto x_scale_of = [&](int token) {
    return token < result.tokens ? __ldg(result.x_scale + token) : 0.f;
  };

  if (result.type != FLOAT32 && !result.residual) {
    constexpr int LANES = S::MB * 2, AT_ONCE = 32 / LANES;  // lanes a token
#pragma unroll
    for (int from = 0; from < S::T; from += S::TURN) {
      __syncwarp();
#pragma unroll
      for (int t = 0; t < S::TURN; t += 16) {
        float x_scale[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
          x_scale[i] = x_scale_of(token0 + from + t + i / 2 * 8 + lane % 4 * 2 + i % 2);
#pragma unroll
        for (int mb = 0; mb < S::MB; mb++) {
          uint32_t v[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int at = (from + t) / 2 + i * 2;
            v[i] = two(value(mb, at, x_scale[i / 2 * 2]), value(mb, at + 1, x_scale[i / 2 * 2 + 1]),
                       result.type);
          }
          const int token = t + lane / 16 * 8 + lane % 8;
          const uint32_t to = mbarrier::address_of(turn) + token * S::PITCH + mb * 32 +
                              lane / 8 % 2 * 16;
          asm volatile(
              "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to),
              "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
              : "memory");
        }
      }
      __syncwarp();
#pragma unroll
      for (int t = 0; t < S::TURN; t += AT_ONCE) {
        const int in_turn = t + lane / LANES, token = token0 + from + in_turn;
        const int row = row0 + lane % LANES * 8;
        if (token >= result.tokens || row >= result.rows) continue;
        const uint4 v = load_shared(mbarrier::address_of(turn) + in_turn * S::PITCH +
                                    lane % LANES * 16);
        uint16_t* y = static_cast<uint16_t*>(result.y) + token * pitch + row;
        if (pitch % 8 == 0) {
          *reinterpret_cast<uint4*>(y) = v;
        } else {
          const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int i = 0; i < 8; i++)
            if (row + i < result.rows) y[i] = words[i / 2] >> (i % 2 * 16);
        }
      }
    }
    return;
  }

  constexpr int LANES = S::MB * 4, AT_ONCE = 32 / LANES;
  float* wide = reinterpret_cast<float*>(turn);
#pragma unroll
  for (int from = 0; from < S::T; from += S::WIDE_TURN) {
    __syncwarp();
    float x_scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      x_scale[i] = x_scale_of(token0 + from + i / 2 * 8 + lane % 4 * 2 + i % 2);
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        wide[token * S::WIDE_PITCH + mb * 16 + i / 2 % 2 * 8 + lane / 4] =
            value(mb, from / 2 + i, x_scale[i / 4 * 2 + i % 2]);
      }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < S::WIDE_TURN; t += AT_ONCE) {
      const int in_turn = t + lane / LANES, token = token0 + from + in_turn;
      const int row = row0 + lane % LANES * 4;
      if (token >= result.tokens) continue;
      const float4 v =
          *reinterpret_cast<float4*>(wide + in_turn * S::WIDE_PITCH + lane % LANES * 4);
      const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (row + i >= result.rows) continue;
        const int64_t at = token * pitch + row + i;
        float y = values[i];
        if (result.residual) y = __fadd_rn(y, number(result.residual, result.type, at));
        if (result.type == FLOAT32)
          static_cast<float*>(result.y)[at] = y;
        else
          static_cast<uint16_t*>(result.y)[at] = two(y, 0.f, result.type);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(THREADS, 1)
    prefill(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
            const Plan plan, const Result result) {
  extern __shared__ uint8_t memory[];
  __shared__ int tickets[2];
  uint8_t* const aligned = memory + (1024 - mbarrier::address_of(memory) % 1024) % 1024;
  const uint32_t x_ring = mbarrier::address_of(aligned);
  const uint32_t w_ring = x_ring + S::STAGES * S::X_BYTES;
  uint8_t* const turns = aligned + S::STAGES * (S::X_BYTES + S::W_BYTES);
  const uint32_t full = mbarrier::address_of(turns + WARPS * S::TURN_BYTES);
  const uint32_t empty = full + S::STAGES * 8;

  const int cluster = blockIdx.x / S::CLUSTER, rank = blockIdx.x % S::CLUSTER;
  const int clusters = gridDim.x / S::CLUSTER;
  // the same in all lanes, and known to be: a branch on it does not split a warpgroup
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::STAGES; s++) {
      mbarrier::init(full + s * 8, 1);
      mbarrier::init(empty + s * 8, WARPS * S::CLUSTER);
    }
    mbarrier::publish();
    tma::prefetch(&x_map);
    tma::prefetch(&w_map);
  }
  if constexpr (S::CLUSTER > 1)
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  else
    __syncthreads();

  Walk walk(plan, cluster);
  int stage = 0;
  uint32_t parity = 0;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0)
      while (walk.next(plan, clusters)) {
        const Place place(plan, walk.tile);
        const int token0 = place.m * S::T;
        const int block0 = (place.n * S::CLUSTER + rank) * (S::ROWS / 16);
        for (int k = walk.first; k < walk.last; k++) {
          const uint32_t ready = full + stage * 8;
          const uint32_t x = x_ring + stage * S::X_BYTES;
          mbarrier::wait(empty + stage * 8, parity ^ 1);
          mbarrier::expect(ready, S::X_BYTES + S::W_BYTES);
          if constexpr (S::CLUSTER > 1)
            tma::load_to_all(x + rank * (S::X_BYTES / S::CLUSTER), &x_map, ready, k * DEPTH,
                             token0 + rank * (S::T / S::CLUSTER), (1 << S::CLUSTER) - 1);
          else
            tma::load(x, &x_map, ready, k * DEPTH, token0);
          tma::load(w_ring + stage * S::W_BYTES, &w_map, ready, 0, k * S::UNITS, block0);
          if (++stage == S::STAGES) stage = 0, parity ^= 1;
        }
      }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = warp / 4 - 1, block = (group * 4 + warp % 4) * S::MB;
    const uint32_t w_mine = w_ring + block * (S::UNITS * 512) + lane * 16;
    const auto release = [&](int s) {
      if constexpr (S::CLUSTER > 1) {
        if (lane < S::CLUSTER) mbarrier::arrive_at(empty + s * 8, lane);
      } else if (lane == 0) {
        mbarrier::arrive(empty + s * 8);
      }
    };
    int ahead = plan.whole > clusters ? S::AHEAD : 1;
    while (walk.next(plan, clusters)) {
      if (group == 1 && ahead) meet(3, 2 * GROUP_THREADS);
      if (group == 1) ahead = 0;
      int sums[S::MB][S::T / 2];
#pragma unroll
      for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
        for (int i = 0; i < S::T / 2; i++) sums[mb][i] = 0;
      const Place place(plan, walk.tile);
      const int row0 = (place.n * S::CLUSTER + rank) * S::ROWS + block * 16;
      float totals[S::GROUP ? S::MB : 1][S::GROUP ? S::T / 2 : 1] = {};
      int before = -1;  // the stage whose last products may still run
      for (int k = walk.first; k < walk.last; k++) {
        constexpr int GROUPS = S::GROUP ? DEPTH / S::GROUP : 1;
        float scales[GROUPS][S::MB][2];
        if constexpr (S::GROUP > 0) {
#pragma unroll
          for (int i = 0; i < GROUPS * S::MB * 2; i++)
            scales[i / (S::MB * 2)][i / 2 % S::MB][i % 2] =
                weight_scale<S>(result, row0 + i / 2 % S::MB * 16 + i % 2 * 8 + lane / 4,
                                k * GROUPS + i / (S::MB * 2));
        }
        mbarrier::wait(full + stage * 8, parity);
        const uint64_t x = wgmma::descriptor(x_ring + stage * S::X_BYTES);
        const uint32_t w = w_mine + stage * S::W_BYTES;
        uint4 words[S::MB];
#pragma unroll
        for (int step = 0; step < 4; step += S::JOIN) {
          uint32_t a[S::JOIN][S::MB][4];
#pragma unroll
          for (int j = 0; j < S::JOIN; j++)
#pragma unroll
            for (int mb = 0; mb < S::MB; mb++) {
              const int unit = (step + j) / S::STEPS_A_UNIT, field = (step + j) % S::STEPS_A_UNIT;
              if (field == 0) words[mb] = load_shared(w + (mb * S::UNITS + unit) * 512);
              a[j][mb][0] = signed_bytes<S::BITS>(words[mb].x, field);
              a[j][mb][1] = signed_bytes<S::BITS>(words[mb].y, field);
              a[j][mb][2] = signed_bytes<S::BITS>(words[mb].z, field);
              a[j][mb][3] = signed_bytes<S::BITS>(words[mb].w, field);
            }
#pragma unroll
          for (int j = 0; j < S::JOIN; j++)
#pragma unroll
            for (int mb = 0; mb < S::MB; mb++) wgmma::pin(a[j][mb]);
          wgmma::fence();
#pragma unroll
          for (int j = 0; j < S::JOIN; j++)
#pragma unroll
            for (int mb = 0; mb < S::MB; mb++)
              wgmma::product<S::T>(sums[mb], a[j][mb], x + (step + j) * 2, !S::GROUP || j > 0);
          wgmma::commit();
          if constexpr (S::GROUP > 0) {
            wgmma::wait<0>();
            if (step + S::JOIN == 4) release(stage);
#pragma unroll
            for (int mb = 0; mb < S::MB; mb++) {
              wgmma::pin(sums[mb]);
#pragma unroll
              for (int i = 0; i < S::T / 2; i++)
                totals[mb][i] = __fmaf_rn(static_cast<float>(sums[mb][i]),
                                          scales[step / S::JOIN][mb][i / 2 % 2], totals[mb][i]);
            }
          } else {
            wgmma::wait<1>();
            if (step == 0 && before >= 0) release(before);
          }
        }
        before = stage;
        if (++stage == S::STAGES) stage = 0, parity ^= 1;
        if (ahead && (--ahead == 0 || k == walk.last - 1)) {
          ahead = 0;
          asm volatile("bar.arrive 3, %0;" ::"n"(2 * GROUP_THREADS) : "memory");
        }
      }
      uint8_t* const turn = turns + (warp - 4) * S::TURN_BYTES;
      if constexpr (S::GROUP > 0) {
        write<S>(totals, result, place.m * S::T, row0, turn);
      } else {
        wgmma::wait<0>();
#pragma unroll
        for (int mb = 0; mb < S::MB; mb++) wgmma::pin(sums[mb]);
        release(before);
        const bool cut = walk.first > 0 || walk.last < plan.depth;
        if (!cut || take_over<S>(sums, plan, result, walk.tile, cluster, rank, group,
                                 tickets + group))
          write<S>(sums, result, place.m * S::T, row0, turn);
      }
    }
  }
  // a block that ends takes its shared memory along: others may still send to it
  if constexpr (S::CLUSTER > 1)
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

struct Call {
  const void *x, *codes;
  int64_t x_pitch;  // bytes from token to token, a multiple of 16
  int columns, clusters;
};

template <class S>
int launch(const Call& call, Plan plan, const Result& result, void* stream) {
  const cuuint64_t tokens = result.tokens, blocks = (result.rows + 15) / 16;
  plan.depth = (call.columns + DEPTH - 1) / DEPTH;
  plan.tiles_m = (result.tokens + S::T - 1) / S::T;
  plan.tiles_n = (result.rows + S::ROWS * S::CLUSTER - 1) / (S::ROWS * S::CLUSTER);
  if (S::GROUP && plan.whole < plan.tiles_m * plan.tiles_n) return cudaErrorInvalidValue;
  const cuuint64_t units = plan.depth * S::UNITS;
  CUtensorMap x_map, w_map;
  int error = tma::encode<2>(&x_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, call.x,
                             {static_cast<cuuint64_t>(call.columns), tokens},
                             {static_cast<cuuint64_t>(call.x_pitch)}, {DEPTH, S::T / S::CLUSTER},
                             CU_TENSOR_MAP_SWIZZLE_128B);
  if (error) return error;
  error = tma::encode<3>(&w_map, CU_TENSOR_MAP_DATA_TYPE_INT32, call.codes, {128, units, blocks},
                         {512, units * 512}, {128, S::UNITS, S::ROWS / 16},
                         CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error) return error;
  const auto kernel = prefill<S>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(call.clusters * S::CLUSTER);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = S::BYTES;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = S::CLUSTER;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, x_map, w_map, plan, result);
}

// The shapes that exist: MB, T, CLUSTER. cuda_wgmma.py knows them by their index. Where scales are of
// groups, every register that sums take is taken twice: only the smaller shapes exist.
template <int BITS, int GROUP>
int launch_shape(int shape, const Call& call, const Plan& plan, const Result& result,
                 void* stream) {
#define SHAPE(...) return launch<Shape<BITS, GROUP, __VA_ARGS__>>(call, plan, result, stream)
  switch (shape) {
    case 4: SHAPE(1, 128, 1);
    case 5: SHAPE(1, 128, 2);
    case 6: SHAPE(2, 64, 1);
    case 7: SHAPE(1, 64, 2);
  }
  if constexpr (GROUP == 0) switch (shape) {
      case 0: SHAPE(2, 128, 1);
      case 1: SHAPE(2, 128, 2);
      case 2: SHAPE(1, 256, 1);
      case 3: SHAPE(1, 256, 2);
      case 8: SHAPE(2, 32, 1);
      case 9: SHAPE(2, 16, 1);
    }
#undef SHAPE
  return cudaErrorInvalidValue;
}

template <int BITS>
int launch_group(int group, int shape, const Call& call, const Plan& plan, const Result& result,
                 void* stream) {
  if (group == 0) return launch_shape<BITS, 0>(shape, call, plan, result, stream);
  if constexpr (BITS < 8) {
    if (group == 64) return launch_shape<BITS, 64>(shape, call, plan, result, stream);
    if (group == 128) return launch_shape<BITS, 128>(shape, call, plan, result, stream);
  }
  return cudaErrorInvalidValue;
}

// Types: 0 float32, 1 float16, 2 bfloat16. bias and residual may be null. `parts` and `arrivals`
// (zeros) are needed where whole < all tiles. `group`: 0, or 64 or 128 columns a scale. Returns a
// cudaError_t.
extern "C" int tercet_linear_prefill(int bits, int group, int shape, const void* x, int64_t x_pitch,
                                     const float* x_scale, const void* codes, const void* w_scale,
                                     int w_scale_type, const void* bias, int bias_type,
                                     const void* residual, void* y, int type, int tokens, int rows,
                                     int columns, int clusters, int whole, int part, int band,
                                     void* parts, int* arrivals, void* stream) {
  const Call call = {x, codes, x_pitch, columns, clusters};
  const Plan plan = {0, 0, 0, whole, part, band};
  const Result result = {w_scale,   bias, residual, x_scale, y,    w_scale_type,
                         bias_type, type, tokens,   rows,    group ? (columns + group - 1) / group : 1, static_cast<int4*>(parts),
                         arrivals};
#ifdef TERCET_BITS
  return bits == TERCET_BITS
             ? launch_group<TERCET_BITS>(group, shape, call, plan, result, stream)
             : cudaErrorInvalidValue;
#else
  if (bits == 2) return launch_group<2>(group, shape, call, plan, result, stream);
  if (bits == 4) return launch_group<4>(group, shape, call, plan, result, stream);
  if (bits == 8) return launch_group<8>(group, shape, call, plan, result, stream);
  return cudaErrorInvalidValue;
#endif
}
