// The products of one group of warps over a run of stages: packed words become the operand that
// wgmma takes from registers while earlier products run.
#pragma once
#include "mbarrier.cuh"
#include "prefill_result.cuh"
#include "prefill_shape.cuh"
#include "wgmma.cuh"

struct Ring {
  uint32_t x, w, full, empty;  // shared addresses
  uint32_t meeting, arrived;   // where sums of a split tile meet
  int stage = 0;
  uint32_t parity = 0;
  template <class S>
  __device__ void advance() {
    if (++stage == S::STAGES) stage = 0, parity ^= 1;
  }
};

// What a warp takes out of the ring.
template <class S>
struct Feed {
  Ring ring;
  const uint32_t w_mine;  // this lane's words of the warp's first rows, in stage 0
  const uint32_t zero = unknown_zero();
  int left = 0;  // stages of this run that were not opened
  uint4 words[S::MB];

  __device__ Feed(const Ring& ring, int block)
      : ring(ring), w_mine(ring.w + block * (S::UNITS * 512) + threadIdx.x % 32 * 16) {}

  __device__ void load_unit(int unit) {
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++)
      words[mb] = load_shared(w_mine + ring.stage * S::W_BYTES + (mb * S::UNITS + unit) * 512);
  }
  __device__ void open() {
    if (left-- <= 0) return;
    mbarrier::wait(ring.full + ring.stage * 8, ring.parity);
    load_unit(0);
  }
  // The run begins; its stages follow each other.
  __device__ void open(int stages) {
    left = stages;
    open();
  }
  __device__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if constexpr (S::CLUSTER > 1) {
      if (lane < S::CLUSTER) mbarrier::arrive_at(ring.empty + stage * 8, lane);
    } else if (lane == 0) {
      mbarrier::arrive(ring.empty + stage * 8);
    }
  }
  // Starts JOIN steps of 32 columns, and has the words after them on their way.
  __device__ void start(int (&sums)[S::MB][S::T / 2], int step) {
    const uint64_t x = wgmma::descriptor(ring.x + ring.stage * S::X_BYTES);
    uint32_t a[S::JOIN][S::MB][4];
#pragma unroll
    for (int j = 0; j < S::JOIN; j++) {
      const int field = (step + j) % S::STEPS_A_UNIT;
      if (j > 0 && field == 0) load_unit((step + j) / S::STEPS_A_UNIT);
#pragma unroll
      for (int mb = 0; mb < S::MB; mb++) {
        a[j][mb][0] = signed_bytes<S::BITS>(words[mb].x, field, zero);
        a[j][mb][1] = signed_bytes<S::BITS>(words[mb].y, field, zero);
        a[j][mb][2] = signed_bytes<S::BITS>(words[mb].z, field, zero);
        a[j][mb][3] = signed_bytes<S::BITS>(words[mb].w, field, zero);
      }
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
    const int next = step + S::JOIN;
    if (next == 4) {
      ring.advance<S>();
      open();
    } else if (next % S::STEPS_A_UNIT == 0) {
      load_unit(next / S::STEPS_A_UNIT);
    }
  }
};

// Lets the first group of warps go some stages ahead, once.
template <class S>
struct Lead {
  int stages;
  __device__ Lead(bool long_walk) : stages(long_walk ? S::AHEAD : 1) {}
  __device__ void follow() {
    if (stages) meet(3, 2 * GROUP_THREADS);
    stages = 0;
  }
  // after each stage of the first group
  __device__ void count(bool last) {
    if (!stages || (--stages && !last)) return;
    stages = 0;
    asm volatile("bar.arrive 3, %0;" ::"n"(2 * GROUP_THREADS) : "memory");
  }
};

// sums: of all products of `stages` stages
template <class S>
__device__ void multiply(int (&sums)[S::MB][S::T / 2], Feed<S>& feed, Lead<S>& lead, int stages) {
#pragma unroll
  for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
    for (int i = 0; i < S::T / 2; i++) sums[mb][i] = 0;
  int before = -1;  // the stage whose last products may still run
  feed.open(stages);
  for (int k = 0; k < stages; k++) {
    const int stage = feed.ring.stage;
#pragma unroll
    for (int step = 0; step < 4; step += S::JOIN) {
      feed.start(sums, step);
      wgmma::wait<1>();
      if (step == 0 && before >= 0) feed.release(before);
    }
    before = stage;
    lead.count(k == stages - 1);
  }
  wgmma::wait<0>();
#pragma unroll
  for (int mb = 0; mb < S::MB; mb++) wgmma::pin(sums[mb]);
  feed.release(before);
}

// totals: of all groups of `stages` stages from `first` on, times the rows' scales. Of groups of 128
// columns the products of one run while the sums of the one before are scaled.
template <class S>
__device__ void multiply_groups(float (&totals)[S::MB][S::T / 2], Feed<S>& feed, Lead<S>& lead,
                                const Result& result, int row0, int first, int stages) {
  int sums[2][S::MB][S::T / 2], stage[2];
  WeightScales<S> scales[2];
  const int groups = stages * S::GROUPS;
  const auto start = [&](int which, int group, int step) {
    scales[which].load(result, row0, first * S::GROUPS + group);
    stage[which] = feed.ring.stage;
    feed.start(sums[which], step);
    if (step + S::JOIN == 4) lead.count(group == groups - 1);
  };
  const auto finish = [&](int which) {
#pragma unroll
    for (int mb = 0; mb < S::MB; mb++) {
      wgmma::pin(sums[which][mb]);
      const float scale[2] = {scales[which].of(result, mb, 0), scales[which].of(result, mb, 1)};
#pragma unroll
      for (int i = 0; i < S::T / 2; i++)
        totals[mb][i] = __fmaf_rn(static_cast<float>(sums[which][mb][i]), scale[i / 2 % 2],
                                  totals[mb][i]);
    }
  };
#pragma unroll
  for (int mb = 0; mb < S::MB; mb++)
#pragma unroll
    for (int i = 0; i < S::T / 2; i++) totals[mb][i] = 0.f;
  feed.open(stages);
  if constexpr (S::GROUPS == 2) {
    for (int k = 0; k < stages; k++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        start(0, k * 2 + half, half * 2);
        wgmma::wait<0>();
        if (half == 1) feed.release(stage[0]);
        finish(0);
      }
    return;
  }
  start(0, 0, 0);
  for (int k = 0;; k += 2) {
    if (k + 1 == stages) {
      wgmma::wait<0>();
      feed.release(stage[0]);
      finish(0);
      return;
    }
    start(1, k + 1, 0);
    wgmma::wait<1>();
    feed.release(stage[0]);
    finish(0);
    if (k + 2 == stages) break;
    start(0, k + 2, 0);
    wgmma::wait<1>();
    feed.release(stage[1]);
    finish(1);
  }
  wgmma::wait<0>();
  feed.release(stage[1]);
  finish(1);
}
