// The mainloop with scales of groups: sums over each group become float32, times the rows' scales, while the
// tensor cores run the next group.
//
// With int8 x a warp's tokens are two halves with sums of their own: products of one half run while sums of
// the other are scaled. Loops are unrolled over RUN stages and end with nothing in flight: ptxas serializes
// wgmmas (C7514) where sums are read after the next iteration has started others.
#pragma once
#include "packed_weight/hopper/mainloop.cuh"

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
__device__ void start_half(Half<S>& sums, const Consumer<S>& consumer, const Operands<S>& a, int step,
                           int half) {
  wgmma::fence();
#pragma unroll
  for (int j = 0; j < S::STEPS_AT_ONCE; j++)
    half_product<S>(sums, a[j][0][0],
                    wgmma::full_descriptor(consumer.from + half * (S::T * 4) + S::x_offset(step + j, 0)), j > 0);
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
__device__ void multiply_run(float (&totals)[S::T / 2], Consumer<S>& consumer, Operands<S> (&operands)[2],
                             const Result& result, int block) {
  Half<S> sums[2];
  float scale[2][2];
  int stage = 0;
#pragma unroll
  for (int g = 0; g < STAGES * S::GROUPS; g++) {
    const int now = g % 2, step = g % S::GROUPS * S::STEPS_AT_ONCE;
    if (step == 0) consumer.find_stage();
    start_half<S>(sums[0], consumer, operands[now], step, 0);
    GroupScales<S> scales;
    scales.load(consumer.pipeline, block, g % S::GROUPS, result.w_scale_type);
    if (g > 0) {
      wgmma::wait<1>();
      if (step == 0) consumer.release(stage);
      add_scaled<S>(totals, 1, sums[1], scale[1 - now]);
    }
    stage = consumer.pipeline.stage;
    start_half<S>(sums[1], consumer, operands[now], step, 1);
    consumer.pass(step);
#pragma unroll
    for (int row = 0; row < 2; row++) scale[now][row] = scales.of(0, row, result.w_scale_type);
    consumer.prepare(operands[1 - now], (step + S::STEPS_AT_ONCE) % 4);
    wgmma::wait<1>();
    add_scaled<S>(totals, 0, sums[0], scale[now]);
  }
  wgmma::wait<0>();
  consumer.release(stage);
  add_scaled<S>(totals, 1, sums[1], scale[(STAGES * S::GROUPS - 1) % 2]);
}

// totals: of all groups of `stages` stages, times the rows' scales
template <class S>
__device__ void multiply_groups(float (&totals)[S::T / 2], Consumer<S>& consumer, Stagger& stagger,
                                const Result& result, int block, int stages) {
  static_assert(S::MB == 1 && S::STEPS_AT_ONCE * 32 == S::GROUP && S::RUN == 4);
  Operands<S> operands[2];
#pragma unroll
  for (int i = 0; i < S::T / 2; i++) totals[i] = 0.f;
  consumer.open(stages);
  consumer.prepare(operands[0], 0);
  int k = 0;
#pragma unroll 1
  for (; k + 4 <= stages; k += 4) {
    multiply_run<S, 4>(totals, consumer, operands, result, block);
    stagger.count(k + 4 == stages);
  }
  if (stages & 2) {
    multiply_run<S, 2>(totals, consumer, operands, result, block);
    stagger.count(!(stages & 1));
  }
  if (stages & 1) {
    multiply_run<S, 1>(totals, consumer, operands, result, block);
    stagger.count(true);
  }
}

// Likewise with 16-bit x, all tokens at once. The operands of the next products are ready before these
// have ended.
template <class S>
__device__ void multiply_wide_groups(float (&totals)[S::T / 2], Consumer<S>& consumer, Stagger& stagger,
                                     const Result& result, int block, int stages) {
  static_assert(S::MB == 1 && S::RUN == 1 && S::STEPS_AT_ONCE == 2);
  Sums<S> sums;
  Operands<S> operands[2];  // double-buffered
#pragma unroll
  for (int i = 0; i < S::T / 2; i++) totals[i] = 0.f;
  consumer.open(stages);
  consumer.prepare(operands[0], 0);
  for (int k = 0; k < stages; k++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int step = i * S::STEPS_AT_ONCE, stage = consumer.pipeline.stage;
      const bool first = step * 32 % S::GROUP == 0;
      const bool last = (step + S::STEPS_AT_ONCE) * 32 % S::GROUP == 0;
      const bool stage_ends = step + S::STEPS_AT_ONCE == 4;
      GroupScales<S> scales;
      consumer.start(sums, operands[i], step, first);
      if (last) scales.load(consumer.pipeline, block, step * 32 / S::GROUP, result.w_scale_type);
      consumer.pass(step);
      if (!first) wgmma::wait<1>();
      consumer.prepare(operands[1 - i], (step + S::STEPS_AT_ONCE) % 4);
      if (stage_ends) stagger.count(k == stages - 1);
      if (!last) continue;
      float scale[2];
#pragma unroll
      for (int row = 0; row < 2; row++) scale[row] = scales.of(0, row, result.w_scale_type);
      wgmma::wait<0>();
      if (stage_ends) consumer.release(stage);
      wgmma::pin(sums[0]);
#pragma unroll
      for (int j = 0; j < S::T / 2; j++)
        totals[j] = __fmaf_rn(sums[0][j], scale[j / 2 % 2], totals[j]);
    }
}
