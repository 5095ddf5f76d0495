// The mainloop of one consumer warpgroup: packed words become the operand that wgmma takes from registers
// while earlier products run.
#pragma once
#include "kernel/device/hopper/mbarrier.cuh"
#include "epilogue.cuh"
#include "tile_shape.cuh"
#include "dequantize.cuh"
#include "kernel/device/hopper/wgmma.cuh"

// Keeps a number in its register: the compiler would compute shared memory's address again in every stage,
// some twenty instructions.
__device__ inline void keep_in_register(uint32_t& number) { asm volatile("" : "+r"(number)); }

struct Pipeline {
  uint32_t x, w, scale, full, empty;  // shared addresses
  uint32_t split_k_sums, arrived;          // of the split-K reduction
  int stage = 0;
  uint32_t parity = 0;
  template <class S>
  __device__ void advance() {
    if (++stage == S::STAGES) stage = 0, parity ^= 1;
  }
};

// for producers
template <class S>
__device__ void keep_addresses(Pipeline& pipeline) {
  keep_in_register(pipeline.x);
  keep_in_register(pipeline.w);
  keep_in_register(pipeline.full);
  pipeline.empty = pipeline.full + S::STAGES * 8;
}

// of STEPS_AT_ONCE steps of 32 columns: X_SIZE products a step and 64 rows
template <class S>
using Operands = uint32_t[S::STEPS_AT_ONCE][S::X_SIZE][S::MB][4];

template <class S>
__device__ void product(typename S::Sum (&sums)[S::T / 2], const uint32_t (&a)[4], uint64_t x,
                        bool add) {
  if constexpr (S::X == INT8) wgmma::product_s8<S::T>(sums, a, x, add);
  if constexpr (S::X == FLOAT16) wgmma::product_f16<S::T>(sums, a, x, add);
  if constexpr (S::X == BFLOAT16) wgmma::product_bf16<S::T>(sums, a, x, add);
  if constexpr (S::X == E4M3) wgmma::product_e4m3<S::T>(sums, a, x, add);
}

// Scales of a lane's rows in one group, which came with the stage: 0 beyond the rows and groups.
template <class S>
struct GroupScales {
  uint32_t bits[S::MB][2];
  __device__ void load(const Pipeline& pipeline, int block, int group, int type) {
    const int size = type == FLOAT32 ? 4 : 2;
    const uint32_t from = pipeline.scale + pipeline.stage * S::SCALE_BYTES +
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

// What a warp of a consumer warpgroup reads from the pipeline.
template <class S>
struct Consumer {
  Pipeline pipeline;
  Words<S> words;
  uint32_t x;     // the lower word of the first stage's descriptor
  uint32_t from;  // of this stage's, where it is shared
  int left = 0;   // stages of this tile that were not opened
  const int block;  // of 16 rows, the warp's first

  __device__ Consumer(const Pipeline& initial, int block)
      : pipeline(initial), words(initial.w + block * (S::UNITS * 512)), x(wgmma::descriptor_of_address(initial.x)),
        block(block) {
    keep_in_register(pipeline.full);
    pipeline.empty = pipeline.full + S::STAGES * 8;
    keep_in_register(words.mine);
    keep_in_register(x);
  }

  __device__ void load_unit(int unit) { words.load(pipeline.stage * S::W_BYTES + unit * 512); }
  __device__ void load_scales() {
#pragma unroll
    for (int group = 0; group < S::GROUPS; group++) {
      GroupScales<S> rows;
      rows.load(pipeline, block, group, FLOAT16);
#pragma unroll
      for (int mb = 0; mb < S::MB; mb++)
        words.scales[group][mb] = rows.bits[mb][0] | rows.bits[mb][1] << 16;
    }
  }
  // Waits for the tile's next stage, if there is one.
  __device__ bool wait_for_stage() {
    if (left-- <= 0) return false;
    mbarrier::wait(pipeline.full + pipeline.stage * 8, pipeline.parity);
    return true;
  }
  __device__ void open() {
    if (!wait_for_stage()) return;
    load_unit(0);
    if constexpr (S::SCALED) load_scales();
  }
  // Begins a tile of so many stages.
  __device__ void open(int stages) {
    left = stages;
    open();
  }
  __device__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if constexpr (S::CLUSTER > 1) {
      if (lane < S::CLUSTER) mbarrier::arrive_at(pipeline.empty + stage * 8, lane);
    } else if (lane == 0) {
      mbarrier::arrive(pipeline.empty + stage * 8);
    }
  }
  __device__ void prepare(Operands<S>& a, int step) {
#pragma unroll
    for (int j = 0; j < S::STEPS_AT_ONCE; j++) {
      const int field = (step + j) % S::STEPS_A_UNIT;
      if (j > 0 && field == 0) load_unit((step + j) / S::STEPS_A_UNIT);
      words.operands(a[j], field, (step + j) * S::GROUPS / 4);
    }
#pragma unroll
    for (int i = 0; i < S::STEPS_AT_ONCE * S::X_SIZE * S::MB; i++)
      wgmma::pin(a[i / S::MB / S::X_SIZE][i / S::MB % S::X_SIZE][i % S::MB]);
  }
  // wgmma takes descriptors from uniform registers. An address that comes from a shuffle in the same iteration
  // is known to be uniform; any other is moved there for each product, by three instructions.
  __device__ void find_stage() { from = __shfl_sync(~0u, x + pipeline.stage * (S::X_BYTES / 16), 0); }
  // Starts the products of STEPS_AT_ONCE steps; `first`: sums start from zero.
  __device__ void start(Sums<S>& sums, const Operands<S>& a, int step, bool first = false) const {
    const uint32_t stage = S::UNIFORM_ADDRESS ? from : x + pipeline.stage * (S::X_BYTES / 16);
    wgmma::fence();
#pragma unroll
    for (int j = 0; j < S::STEPS_AT_ONCE; j++)
#pragma unroll
      for (int slice = 0; slice < S::X_SIZE; slice++) {
#pragma unroll
        for (int mb = 0; mb < S::MB; mb++)
          product<S>(sums[mb], a[j][slice][mb], wgmma::full_descriptor(stage + S::x_offset(step + j, slice)),
                     !first || j + slice > 0);
      }
    wgmma::commit();
  }
  // Loads the words after those steps, of the next stage where these were the last.
  __device__ void pass(int step) {
    const int next = step + S::STEPS_AT_ONCE;
    if (next == 4) {
      pipeline.advance<S>();
      open();
    } else if (next % S::STEPS_A_UNIT == 0) {
      load_unit(next / S::STEPS_A_UNIT);
    }
  }
};

// Lets the first of two consumer warpgroups go some stages ahead, once; 0: neither waits for the other.
struct Stagger {
  int stages;
  __device__ void follow() {
    if (stages) sync_named_barrier(7, 2 * WARPGROUP_THREADS);
    stages = 0;
  }
  // after each stage of the first warpgroup
  __device__ void count(bool last) {
    if (!stages || (--stages && !last)) return;
    stages = 0;
    asm volatile("bar.arrive 7, %0;" ::"n"(2 * WARPGROUP_THREADS) : "memory");
  }
};

// sums: of all products of `stages` stages
template <class S>
__device__ void multiply(Sums<S>& sums, Consumer<S>& consumer, Stagger& stagger, int stages) {
  clear<S>(sums);
  int before = -1;  // the stage whose last products may still run
  consumer.open(stages);
  for (int k = 0; k < stages; k++) {
    const int stage = consumer.pipeline.stage;
    if constexpr (S::UNIFORM_ADDRESS) consumer.find_stage();
#pragma unroll
    for (int step = 0; step < 4; step += S::STEPS_AT_ONCE) {
      Operands<S> a;
      consumer.prepare(a, step);
      consumer.start(sums, a, step);
      consumer.pass(step);
      wgmma::wait<1>();
      if (step == 0 && before >= 0) consumer.release(before);
    }
    before = stage;
    stagger.count(k == stages - 1);
  }
  wgmma::wait<0>();
#pragma unroll
  for (int mb = 0; mb < S::MB; mb++) wgmma::pin(sums[mb]);
  consumer.release(before);
}
