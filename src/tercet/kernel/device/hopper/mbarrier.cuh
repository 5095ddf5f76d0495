// mbarriers in shared memory: how TMA, producers and consumers hand buffers to each other.
//
// Every wait is bounded: a barrier whose phase never completes stops the kernel with an illegal address, the
// barrier's own in shared memory, instead of hanging the device. `trap` and `printf` would do the
// same, but ptxas then no longer gives consumers the registers that setmaxnreg asks for, and serializes
// their wgmmas (C7512).
#pragma once
#include <stdint.h>

namespace mbarrier {

constexpr uint32_t MOST_POLLS = 1u << 22;

__device__ inline uint32_t address_of(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline void init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// after init, before any other thread, block of the cluster or TMA uses the barriers
__device__ inline void publish() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// one arrival, and so many bytes that TMA still has to write in this phase
__device__ inline void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// at the same barrier of block `rank` of the cluster
__device__ inline void arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Before, in every lane, and then a __syncwarp: what was written to other blocks' shared memory is
// there for whoever waits for arrive_releasing with wait<true>.
__device__ inline void share_with_cluster() {
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

__device__ inline void arrive_releasing(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// CLUSTER: and what other blocks released there is seen
template <bool CLUSTER = false>
__device__ inline bool passed(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  if (CLUSTER)
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  else
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  return done;
}

// until the phase of that parity is complete
template <bool CLUSTER = false>
__device__ inline void wait(uint32_t barrier, uint32_t parity) {
  for (uint32_t polls = 0; !passed<CLUSTER>(barrier, parity) && polls < MOST_POLLS; polls++)
    if (polls == MOST_POLLS - 1)
      asm volatile("st.global.u32 [%0], %1;" ::"l"(static_cast<uint64_t>(barrier)), "r"(parity)
                   : "memory");
}

}  // namespace mbarrier
