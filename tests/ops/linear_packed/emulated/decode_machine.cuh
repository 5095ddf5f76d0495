// Stands in for decode_machine.cuh, so that a C++ compiler builds decode.cuh for the CPU: threads of a
// block are fibers that run in turn, and collective operations wait until the others have come.
//
// Bulk copies land late, when somebody waits for them, or at once: TERCET_EMULATED_LATE. Late finds
// reads that do not wait, at once finds stages that are asked for while they are still read.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <driver_types.h>
#include <stdint.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#define __launch_bounds__(...)
using std::max;
using std::min;

struct Index {
  unsigned x;
};
inline Index threadIdx, blockIdx, blockDim;

namespace emulated {

struct Barrier {
  int arrived = 0, round = 0;
};
struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes;
};
struct Arrivals {
  int64_t missing = 0;  // bytes
  bool open = false;
  uint32_t phases = 0;
  std::vector<Copy> late;
};

constexpr int STACK = 128 * 1024, SHARED = 227 * 1024;
alignas(128) inline unsigned char memory[SHARED];
inline bool late = false;
inline const char* failure = nullptr;
inline std::vector<ucontext_t> fibers;
inline std::vector<std::unique_ptr<char[]>> stacks;
inline std::vector<bool> done;
inline ucontext_t home;
inline std::function<void()> body;
inline std::vector<Barrier> warps;
inline Barrier all;
inline std::map<uint32_t, Arrivals> arrivals;
inline uint32_t published[64][32][8];
inline int64_t idle = 0;

// ends the block: this fiber does not run again
inline void fail(const char* why) {
  failure = why;
  swapcontext(&fibers[threadIdx.x], &home);
}
inline void yield() {
  if (++idle > 10'000'000) fail("the block hangs");
  const unsigned self = threadIdx.x;
  swapcontext(&fibers[self], &home);
  threadIdx.x = self;
}
inline void meet(Barrier& barrier, int count) {
  const int round = barrier.round;
  if (++barrier.arrived == count) {
    barrier.arrived = 0, barrier.round++;
    idle = 0;
    return;
  }
  while (barrier.round == round) yield();
}
inline void meet_warp() { meet(warps[threadIdx.x / 32], 32); }

// what every lane of the warp gives, for every lane to read until the next exchange
template <class F> void exchange(const uint32_t* words, int count, F read) {
  const int warp = threadIdx.x / 32;
  std::copy(words, words + count, published[warp][threadIdx.x % 32]);
  meet_warp();
  read(published[warp]);
  meet_warp();
}
inline void enter() {
  body();
  done[threadIdx.x] = true;
  idle = 0;
  swapcontext(&fibers[threadIdx.x], &home);
}
inline void land(const Copy& copy) {
  if (copy.to + copy.bytes > SHARED) return fail("a copy past shared memory");
  std::memcpy(memory + copy.to, copy.from, copy.bytes);
}
inline void run_block(int threads) {
  std::memset(memory, 0xA5, SHARED);
  arrivals.clear();
  all = {};
  warps.assign(threads / 32, {});
  fibers.assign(threads, {});
  done.assign(threads, false);
  while (static_cast<int>(stacks.size()) < threads) stacks.emplace_back(new char[STACK]);
  for (int t = 0; t < threads; t++) {
    getcontext(&fibers[t]);
    fibers[t].uc_stack.ss_sp = stacks[t].get();
    fibers[t].uc_stack.ss_size = STACK;
    fibers[t].uc_link = nullptr;
    makecontext(&fibers[t], enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (int t = 0; t < threads; t++) {
      if (done[t]) continue;
      left = true;
      threadIdx.x = t;
      swapcontext(&home, &fibers[t]);
      if (failure) return;
    }
  }
  for (const auto& [at, barrier] : arrivals)
    if (barrier.open) failure = "a copy that nobody waited for";
}
inline int sign_extended(uint32_t word, int byte) { return static_cast<int8_t>(word >> (8 * byte)); }
inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

template <class Sum, class Dot>
void mma(Sum (&c)[4], const uint32_t* a, const uint32_t* b, Dot dot) {
  const uint32_t given[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  exchange(given, 6, [&](uint32_t (*of)[8]) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++)
      for (int quad = 0; quad < 4; quad++)
        for (int half = 0; half < 2; half++)
          c[i] += dot(of[lane / 4 * 4 + quad][i / 2 + 2 * half],
                      of[(lane % 4 * 2 + i % 2) * 4 + quad][4 + half]);
  });
}

template <class... Wanted, class... Given>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(Wanted...), Given&&... given) {
  if (config->dynamicSmemBytes > SHARED) return cudaErrorInvalidValue;
  late = std::getenv("TERCET_EMULATED_LATE") != nullptr;
  blockDim.x = config->blockDim.x;
  body = [&] { kernel(given...); };
  failure = nullptr;
  for (blockIdx.x = 0; blockIdx.x < config->gridDim.x && !failure; blockIdx.x++)
    run_block(config->blockDim.x);
  if (failure) std::fprintf(stderr, "%s\n", failure);
  return failure ? cudaErrorLaunchFailure : cudaSuccess;
}

}  // namespace emulated

#define cudaLaunchKernelEx emulated::launch
#define cudaFuncSetAttribute(kernel, name, value) (static_cast<void>(kernel), cudaSuccess)
#define cudaGetLastError() cudaSuccess
#define cudaGetDevice(device) (*(device) = 0, cudaSuccess)

inline void __syncwarp() { emulated::meet_warp(); }
inline void __syncthreads() { emulated::meet(emulated::all, blockDim.x); }
inline int __shfl_sync(unsigned, int value, int lane) {
  uint32_t word = value, from = 0;
  emulated::exchange(&word, 1, [&](uint32_t (*of)[8]) { from = of[lane][0]; });
  return from;
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  uint32_t most = 0;
  emulated::exchange(&value, 1, [&](uint32_t (*of)[8]) {
    for (int l = 0; l < 32; l++) most = max(most, of[l][0]);
  });
  return most;
}
inline void atomicAdd(int* at, int value) { *at += value; }
inline void atomicMax(uint32_t* at, uint32_t value) { *at = max(*at, value); }
inline float __uint_as_float(uint32_t bits) { return emulated::as_float(bits); }
inline uint32_t __float_as_uint(float value) { return emulated::as_bits(value); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t how) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) word |= (both >> (8 * (how >> (4 * i) & 7)) & 0xff) << (8 * i);
  return word;
}

inline uint32_t __vmaxu2(uint32_t a, uint32_t b) {
  return max(a & 0xffffu, b & 0xffffu) | max(a & 0xffff0000u, b & 0xffff0000u);
}

inline uint64_t read_once() { return 0; }
inline uint32_t shared_address(const void* p) {
  return static_cast<const unsigned char*>(p) - emulated::memory;
}
inline void load_matrices(uint32_t at, uint32_t* b) {
  emulated::exchange(&at, 1, [&](uint32_t (*of)[8]) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++)
      std::memcpy(b + i, emulated::memory + of[8 * i + lane / 4][0] + lane % 4 * 4, 4);
  });
}
inline uint4 four_words(uint32_t at) {
  uint4 v;
  std::memcpy(&v, emulated::memory + at, 16);
  return v;
}
inline uint2 two_words(uint32_t at) {
  uint2 v;
  std::memcpy(&v, emulated::memory + at, 8);
  return v;
}
inline void copy_async(uint32_t shared, const void* global, int bytes = 16) {
  std::memset(emulated::memory + shared, 0, 16);
  std::memcpy(emulated::memory + shared, global, bytes);
}
inline void copies_arrived() {}

inline void barrier_init(uint32_t barrier) { emulated::arrivals[barrier] = {}; }
inline void barriers_ready() {}
inline void expect(uint32_t barrier, uint32_t bytes) {
  emulated::Arrivals& there = emulated::arrivals.at(barrier);
  if (there.open) return emulated::fail("a stage asked for twice");
  there.open = true, there.missing += bytes;
}
inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint64_t) {
  if (!bytes || (shared | bytes | reinterpret_cast<uint64_t>(global)) & 15)
    return emulated::fail("a bulk copy that is not of 16 bytes");
  emulated::Arrivals& there = emulated::arrivals.at(barrier);
  const emulated::Copy copy{shared, global, bytes};
  if (emulated::late) there.late.push_back(copy);
  else emulated::land(copy);
  there.missing -= bytes;
}
inline void wait_for(uint32_t barrier, uint32_t parity) {
  emulated::Arrivals& there = emulated::arrivals.at(barrier);
  while ((there.phases & 1) == parity) {
    if (there.open && !there.missing) {
      for (const emulated::Copy& copy : there.late) emulated::land(copy);
      there.late.clear();
      there.open = false, there.phases++, emulated::idle = 0;
    } else {
      emulated::yield();
    }
  }
}

inline void mma_int8(int (&c)[4], const uint32_t* a, const uint32_t* b) {
  emulated::mma(c, a, b, [](uint32_t w, uint32_t x) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += emulated::sign_extended(w, i) * emulated::sign_extended(x, i);
    return sum;
  });
}
inline void mma_bfloat16(float (&c)[4], const uint32_t* a, const uint32_t* b) {
  emulated::mma(c, a, b, [](uint32_t w, uint32_t x) {
    return emulated::as_float(w << 16) * emulated::as_float(x << 16) +
           emulated::as_float(w & 0xffff0000u) * emulated::as_float(x & 0xffff0000u);
  });
}
inline void mma_float16(float (&c)[4], const uint32_t* a, const uint32_t* b) {
  emulated::mma(c, a, b, [](uint32_t w, uint32_t x) {
    const float2 ws = __half22float2(reinterpret_cast<const __half2&>(w));
    const float2 xs = __half22float2(reinterpret_cast<const __half2&>(x));
    return ws.x * xs.x + ws.y * xs.y;
  });
}
inline void let_next_start() {}
inline void wait_for_previous() {}

inline uint32_t bits_at(const void* p, int64_t i, int type) {
  if (type == 0) return static_cast<const uint32_t*>(p)[i];
  return static_cast<const uint16_t*>(p)[i];
}
inline float number_of(uint32_t bits, int type) {
  if (type == 0) return __uint_as_float(bits);
  const float half = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  return type == 1 ? half : __uint_as_float(bits << 16);
}
inline float number_at(const void* p, int64_t i, int type) {
  return number_of(bits_at(p, i, type), type);
}
inline void put_number(void* p, int64_t i, int type, float value) {
  if (type == 0) static_cast<float*>(p)[i] = value;
  if (type == 1) static_cast<__half*>(p)[i] = __float2half_rn(value);
  if (type == 2) static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(value);
}
inline int bytes_of(int type) { return type == 0 ? 4 : 2; }
