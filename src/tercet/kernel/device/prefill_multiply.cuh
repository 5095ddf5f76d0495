// The products of one group of warps over a run of stages: packed words become the operand that
// wgmma takes from registers while earlier products run.
#pragma once
#include "mbarrier.cuh"
#include "prefill_result.cuh"
#include "prefill_shape.cuh"
#include "prefill_words.cuh"
#include "wgmma.cuh"

// Keeps a number in its register: the compiler would find shared memory's address anew in every stage,
// some twenty instructions.
__device__ inline void keep(uint32_t& number) { asm volatile("" : "+r"(number)); }

struct Ring {
  uint32_t x, w, scale, full, empty;  // shared addresses
  uint32_t meeting, arrived;          // where sums of a split tile meet
  int stage = 0;
  uint32_t parity = 0;
  template <class S>
  __device__ void advance() {
    if (++stage == S::STAGES) stage = 0, parity ^= 1;
  }
};

// for who fills the ring
template <class S>
__device__ void keep_places(Ring& ring) {
  keep(ring.x);
  keep(ring.w);
  keep(ring.full);
  ring.empty = ring.full + S::STAGES * 8;
}

// of JOIN steps of 32 columns: X_SIZE products a step and 64 rows
template <class S>
using Operands = uint32_t[S::JOIN][S::X_SIZE][S::MB][4];

template <class S>
__device__ void product(typename S::Sum (&sums)[S::T / 2], const uint32_t (&a)[4], uint64_t x,
                        bool add) {
  if constexpr (S::X == INT8) wgmma::product_s8<S::T>(sums, a, x, add);
  if constexpr (S::X == FLOAT16) wgmma::product_f16<S::T>(sums, a, x, add);
  if constexpr (S::X == BFLOAT16) wgmma::product_bf16<S::T>(sums, a, x, add);
  if constexpr (S::X == E4M3) wgmma::product_e4m3<S::T>(sums, a, x, add);
}

// What a warp takes out of the ring.
template <class S>
struct Feed {
  Ring ring;
  Words<S> words;
  uint32_t x;     // the lower word of the first stage's descriptor
  uint32_t from;  // of this stage's, where it is shared
  int left = 0;   // stages of this run that were not opened

  __device__ Feed(const Ring& given, int block)
      : ring(given), words(given.w + block * (S::UNITS * 512)), x(wgmma::place(given.x)) {
    keep(ring.full);
    ring.empty = ring.full + S::STAGES * 8;
    keep(words.mine);
    keep(x);
  }

  __device__ void load_unit(int unit) { words.load(ring.stage * S::W_BYTES + unit * 512); }
  // Waits for the run's next stage, if there is one.
  __device__ bool wait_for_stage() {
    if (left-- <= 0) return false;
    mbarrier::wait(ring.full + ring.stage * 8, ring.parity);
    return true;
  }
  __device__ void open() {
    if (wait_for_stage()) load_unit(0);
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
  __device__ void prepare(Operands<S>& a, int step) {
#pragma unroll
    for (int j = 0; j < S::JOIN; j++) {
      const int field = (step + j) % S::STEPS_A_UNIT;
      if (j > 0 && field == 0) load_unit((step + j) / S::STEPS_A_UNIT);
      words.operands(a[j], field);
    }
#pragma unroll
    for (int i = 0; i < S::JOIN * S::X_SIZE * S::MB; i++)
      wgmma::pin(a[i / S::MB / S::X_SIZE][i / S::MB % S::X_SIZE][i % S::MB]);
  }
  // Products take descriptors from registers that all lanes share. Found by a shuffle in the same turn of
  // the loop it is known to be the same in all; else each product brings it there, three instructions.
  __device__ void find_stage() { from = __shfl_sync(~0u, x + ring.stage * (S::X_BYTES / 16), 0); }
  // Starts the products of JOIN steps; sums begin anew where `first`.
  __device__ void start(Sums<S>& sums, const Operands<S>& a, int step, bool first = false) const {
    const uint32_t stage = S::SHARES_PLACE ? from : x + ring.stage * (S::X_BYTES / 16);
    wgmma::fence();
#pragma unroll
    for (int j = 0; j < S::JOIN; j++)
#pragma unroll
      for (int part = 0; part < S::X_SIZE; part++) {
#pragma unroll
        for (int mb = 0; mb < S::MB; mb++)
          product<S>(sums[mb], a[j][part][mb], wgmma::described(stage + S::x_place(step + j, part)),
                     !first || j + part > 0);
      }
    wgmma::commit();
  }
  // Has the words after those steps on their way, of the next stage where these were the last.
  __device__ void pass(int step) {
    const int next = step + S::JOIN;
    if (next == 4) {
      ring.advance<S>();
      open();
    } else if (next % S::STEPS_A_UNIT == 0) {
      load_unit(next / S::STEPS_A_UNIT);
    }
  }
};

// Lets the first of two groups of warps go some stages ahead, once; 0: both as they come.
struct Lead {
  int stages;
  __device__ void follow() {
    if (stages) meet(7, 2 * GROUP_THREADS);
    stages = 0;
  }
  // after each stage of the first group
  __device__ void count(bool last) {
    if (!stages || (--stages && !last)) return;
    stages = 0;
    asm volatile("bar.arrive 7, %0;" ::"n"(2 * GROUP_THREADS) : "memory");
  }
};

// sums: of all products of `stages` stages
template <class S>
__device__ void multiply(Sums<S>& sums, Feed<S>& feed, Lead& lead, int stages) {
  clear<S>(sums);
  int before = -1;  // the stage whose last products may still run
  feed.open(stages);
  for (int k = 0; k < stages; k++) {
    const int stage = feed.ring.stage;
    if constexpr (S::SHARES_PLACE) feed.find_stage();
#pragma unroll
    for (int step = 0; step < 4; step += S::JOIN) {
      Operands<S> a;
      feed.prepare(a, step);
      feed.start(sums, a, step);
      feed.pass(step);
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

// Scales of a lane's rows in one group, which came with the stage: 0 beyond the rows and groups.
template <class S>
struct GroupScales {
  uint32_t bits[S::MB][2];
  __device__ void load(const Ring& ring, int block, int group, int type) {
    const int size = type == FLOAT32 ? 4 : 2;
    const uint32_t from = ring.scale + ring.stage * S::SCALE_BYTES +
                          ((block * S::GROUPS + group) * 16 + threadIdx.x % 32 / 4) * size;
#pragma unroll
    for (int i = 0; i < S::MB * 2; i++) {
      const uint32_t at = from + (i / 2 * S::GROUPS * 16 + i % 2 * 8) * size;
      uint32_t& to = bits[i / 2][i % 2];
      if (type == FLOAT32)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to) : "r"(at));
      else
        asm volatile("{\n.reg .u16 h;\nld.shared.u16 h, [%1];\ncvt.u32.u16 %0, h;\n}"
                     : "=r"(to)
                     : "r"(at));
    }
  }
  __device__ float of(int mb, int half, int type) const {
    return __fmul_rn(number(bits[mb][half], type), S::UNIT);
  }
};
