// Products of 8-bit floats of x (e4m3) with codes of 2 or 8 bits, and their sums.
//
// The tensor cores keep 13 bits behind the point of such sums, and truncate the rest: each product, and the sum
// so far, is truncated at 2^-13 of the power of two of the largest of them. So a sum starts from zero every 64
// columns, two products of 32, and the warps add it to the total in float32 (promotion).
#pragma once
#include "packed_weight/hopper/mainloop.cuh"

// The words of a batch of two steps of 32 columns, loaded while the previous batch is multiplied.
template <class S>
struct Batch {
  static constexpr int STEPS = 2;
  static constexpr int UNITS = STEPS / S::STEPS_A_UNIT > 1 ? STEPS / S::STEPS_A_UNIT : 1;
  uint4 words[UNITS][S::MB];

  __device__ void load(const Consumer<S>& consumer, int step) {
    if (step % S::STEPS_A_UNIT != 0) return;  // its unit is here
    const uint32_t stage = consumer.words.mine + consumer.pipeline.stage * S::W_BYTES;
#pragma unroll
    for (int i = 0; i < UNITS * S::MB; i++) {
      const int unit = step / S::STEPS_A_UNIT + i / S::MB;
      words[i / S::MB][i % S::MB] = load_shared(stage + (i % S::MB * S::UNITS + unit) * 512);
    }
  }
  __device__ void start(Sums<S>& sums, const Consumer<S>& consumer, int step) const {
    uint32_t a[STEPS][S::MB][4];
#pragma unroll
    for (int i = 0; i < STEPS * S::MB; i++) {
      const int j = i / S::MB, mb = i % S::MB, field = (step + j) % S::STEPS_A_UNIT;
      const uint4 w = words[j / S::STEPS_A_UNIT][mb];
      a[j][mb][0] = signed_bytes<S::BITS>(w.x, field, consumer.words.zero);
      a[j][mb][1] = signed_bytes<S::BITS>(w.y, field, consumer.words.zero);
      a[j][mb][2] = signed_bytes<S::BITS>(w.z, field, consumer.words.zero);
      a[j][mb][3] = signed_bytes<S::BITS>(w.w, field, consumer.words.zero);
      wgmma::pin(a[j][mb]);
    }
    const uint32_t x = consumer.x + consumer.pipeline.stage * (S::X_BYTES / 16) + step * 2;
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < STEPS * S::MB; i++) {
      const int j = i / S::MB, mb = i % S::MB;
      product<S>(sums[mb], a[j][mb], wgmma::full_descriptor(x + j * 2), j > 0);
    }
    wgmma::commit();
  }
};

// totals: of all products of `stages` stages; of groups times their scales. The operands of a batch
// are decoded when the previous one has ended: decoded earlier, from 8-bit codes, ptxas would serialize the
// wgmmas (C7513).
template <class S>
__device__ void multiply_promoted(float (&totals)[S::MB][S::T / 2], Consumer<S>& consumer, Stagger& stagger,
                                  const Result& result, int block, int stages) {
  Sums<S> sums;
  Batch<S> batch;
  clear<S>(totals);
  consumer.left = stages;
  consumer.wait_for_stage();
  batch.load(consumer, 0);
  for (int k = 0; k < stages; k++)
#pragma unroll
    for (int step = 0; step < 4; step += Batch<S>::STEPS) {
      const bool last = step + Batch<S>::STEPS == 4;
      const int stage = consumer.pipeline.stage;
      GroupScales<S> scales;
      batch.start(sums, consumer, step);
      if constexpr (S::GROUP > 0)
        scales.load(consumer.pipeline, block, step * 32 / S::GROUP, result.w_scale_type);
      if (last) {
        consumer.pipeline.template advance<S>();
        if (consumer.wait_for_stage()) batch.load(consumer, 0);
        stagger.count(k == stages - 1);
      } else {
        batch.load(consumer, step + Batch<S>::STEPS);
      }
      wgmma::wait<0>();
      if (last) consumer.release(stage);
#pragma unroll
      for (int mb = 0; mb < S::MB; mb++) {
        wgmma::pin(sums[mb]);
        float scale[2] = {1.f, 1.f};
        if constexpr (S::GROUP > 0)
          for (int half = 0; half < 2; half++)
            scale[half] = scales.of(mb, half, result.w_scale_type);
#pragma unroll
        for (int j = 0; j < S::T / 2; j++)
          totals[mb][j] = S::GROUP ? __fmaf_rn(sums[mb][j], scale[j / 2 % 2], totals[mb][j])
                                   : __fadd_rn(totals[mb][j], sums[mb][j]);
      }
    }
}
