// Products of groups of scales: sums over each group become float32, times the rows' scales, while the
// tensor cores run the next.
//
// With int8 x a warp's tokens are two halves with sums of their own: of one, products run, while those of
// the other are scaled. Loops are unrolled over RUN stages and end with nothing in flight: ptxas runs products one
// by one (C7514) where sums are read after the loop's next turn has begun others.
#pragma once
#include "prefill_multiply.cuh"

// of half of the tokens
template <class S>
using Half = typename S::Sum[S::T / 4];

template <class S>
__device__ void half_product(Half<S>& sums, const uint32_t (&a)[4], uint64_t x, bool add) {
  static_assert(S::X == INT8);
  wgmma::product_s8<S::T / 2>(sums, a, x, add);
}

// Starts a group's products of one half of the tokens.
template <class S>
__device__ void start_half(Half<S>& sums, const Feed<S>& feed, const Operands<S>& a, int step,
                           int half) {
  wgmma::fence();
#pragma unroll
  for (int j = 0; j < S::JOIN; j++)
    half_product<S>(sums, a[j][0][0],
                    wgmma::described(feed.from + half * (S::T * 4) + S::x_place(step + j, 0)), j > 0);
  wgmma::commit();
}

template <class S>
__device__ void add_scaled(float (&totals)[S::T / 2], int half, Half<S>& sums,
                           const float (&scale)[2]) {
  wgmma::pin(sums);
  float* const mine = totals + half * (S::T / 4);
#pragma unroll
  for (int j = 0; j < S::T / 4; j++)
    mine[j] = __fmaf_rn(static_cast<float>(sums[j]), scale[j / 2 % 2], mine[j]);
  // here, not where the compiler finds room for it: products wait for these registers
#pragma unroll
  for (int j = 0; j < S::T / 4; j++) asm volatile("" : "+f"(mine[j]));
}

// A run of stages whose first operands are ready; those after the run's last are, then.
template <class S, int STAGES>
__device__ void multiply_run(float (&totals)[S::T / 2], Feed<S>& feed, Operands<S> (&operands)[2],
                             const Result& result, int block) {
  Half<S> sums[2];
  float scale[2][2];
  int stage = 0;
#pragma unroll
  for (int g = 0; g < STAGES * S::GROUPS; g++) {
    const int now = g % 2, step = g % S::GROUPS * S::JOIN;
    if (step == 0) feed.find_stage();
    start_half<S>(sums[0], feed, operands[now], step, 0);
    GroupScales<S> scales;
    scales.load(feed.ring, block, g % S::GROUPS, result.w_scale_type);
    if (g > 0) {
      wgmma::wait<1>();
      if (step == 0) feed.release(stage);
      add_scaled<S>(totals, 1, sums[1], scale[1 - now]);
    }
    stage = feed.ring.stage;
    start_half<S>(sums[1], feed, operands[now], step, 1);
    feed.pass(step);
#pragma unroll
    for (int row = 0; row < 2; row++) scale[now][row] = scales.of(0, row, result.w_scale_type);
    feed.prepare(operands[1 - now], (step + S::JOIN) % 4);
    wgmma::wait<1>();
    add_scaled<S>(totals, 0, sums[0], scale[now]);
  }
  wgmma::wait<0>();
  feed.release(stage);
  add_scaled<S>(totals, 1, sums[1], scale[(STAGES * S::GROUPS - 1) % 2]);
}

// totals: of all groups of `stages` stages, times the rows' scales
template <class S>
__device__ void multiply_groups(float (&totals)[S::T / 2], Feed<S>& feed, Lead& lead,
                                const Result& result, int block, int stages) {
  static_assert(S::MB == 1 && S::JOIN * 32 == S::GROUP && S::RUN == 4);
  Operands<S> operands[2];
#pragma unroll
  for (int i = 0; i < S::T / 2; i++) totals[i] = 0.f;
  feed.open(stages);
  feed.prepare(operands[0], 0);
  int k = 0;
#pragma unroll 1
  for (; k + 4 <= stages; k += 4) {
    multiply_run<S, 4>(totals, feed, operands, result, block);
    lead.count(k + 4 == stages);
  }
  if (stages & 2) {
    multiply_run<S, 2>(totals, feed, operands, result, block);
    lead.count(!(stages & 1));
  }
  if (stages & 1) {
    multiply_run<S, 1>(totals, feed, operands, result, block);
    lead.count(true);
  }
}

// Likewise with 16-bit x, all tokens at once. The operands of the next products are ready before these
// have ended.
template <class S>
__device__ void multiply_wide_groups(float (&totals)[S::T / 2], Feed<S>& feed, Lead& lead,
                                     const Result& result, int block, int stages) {
  static_assert(S::MB == 1 && S::RUN == 1 && S::JOIN == 2);
  Sums<S> sums;
  Operands<S> operands[2];  // they take turns
#pragma unroll
  for (int i = 0; i < S::T / 2; i++) totals[i] = 0.f;
  feed.open(stages);
  feed.prepare(operands[0], 0);
  for (int k = 0; k < stages; k++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int step = i * S::JOIN, stage = feed.ring.stage;
      const bool first = step * 32 % S::GROUP == 0;
      const bool last = (step + S::JOIN) * 32 % S::GROUP == 0;
      const bool stage_ends = step + S::JOIN == 4;
      GroupScales<S> scales;
      feed.start(sums, operands[i], step, first);
      if (last) scales.load(feed.ring, block, step * 32 / S::GROUP, result.w_scale_type);
      feed.pass(step);
      if (!first) wgmma::wait<1>();
      feed.prepare(operands[1 - i], (step + S::JOIN) % 4);
      if (stage_ends) lead.count(k == stages - 1);
      if (!last) continue;
      float scale[2];
#pragma unroll
      for (int row = 0; row < 2; row++) scale[row] = scales.of(0, row, result.w_scale_type);
      wgmma::wait<0>();
      if (stage_ends) feed.release(stage);
      wgmma::pin(sums[0]);
#pragma unroll
      for (int j = 0; j < S::T / 2; j++)
        totals[j] = __fmaf_rn(sums[0][j], scale[j / 2 % 2], totals[j]);
    }
}
