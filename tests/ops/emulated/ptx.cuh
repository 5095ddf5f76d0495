// Stands in for packed_weight/hopper/ptx.cuh, so that a C++ compiler builds a kernel for the
// CPU: threads of a cluster are fibers that run one after the other, and collective operations wait until
// the others have come.
//
// Copies to shared memory land when their thread waits for them: a read that does not wait finds nothing.
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
#include <memory>
#include <vector>

#define __launch_bounds__(...)
#define __noinline__
using std::max;
using std::min;

struct Index {
  unsigned x, y, z;
};
inline Index threadIdx, blockIdx, blockDim, gridDim;
inline int thread_of_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * 32 + threadIdx.x;
}
inline int threads_of_block() { return blockDim.z * blockDim.y * 32; }

namespace emulated {

struct Barrier {
  int arrived = 0, round = 0;
};
struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
  int whole = 16;  // with the zeros behind them
};

constexpr int STACK = 128 * 1024, SHARED = 227 * 1024;
constexpr int MOST_BLOCKS = 16;  // of a cluster
alignas(128) inline unsigned char memories[MOST_BLOCKS][SHARED];
inline const char* failure = nullptr;
inline std::vector<ucontext_t> fibers;
inline std::vector<std::unique_ptr<char[]>> stacks;
inline std::vector<bool> done;
inline ucontext_t home;
inline std::function<void()> body;
inline std::vector<Barrier> warps;
inline std::vector<Barrier> blocks;
inline Barrier cluster_in, cluster_out;
inline std::vector<std::vector<Copy>> copies;  // of a thread, under way
inline uint32_t published[16 * MOST_BLOCKS][32][8];
inline int64_t idle = 0;
inline unsigned multicast = 1;  // blocks of a cluster along y
// what TMA has sent to a block
struct Parcels {
  std::vector<Copy> sent;
  uint32_t barrier;
  int expected = -1;
};
inline Parcels parcels[MOST_BLOCKS];

// of the cluster
inline int block() { return blockIdx.x + gridDim.x * (blockIdx.y % multicast); }
inline int fiber() { return block() * threads_of_block() + thread_of_block(); }
inline unsigned char* memory() { return memories[block()]; }

// ends the cluster: this fiber does not run again
inline void fail(const char* why) {
  failure = why;
  swapcontext(&fibers[fiber()], &home);
}
inline void yield() {
  if (++idle > 10'000'000) fail("the cluster hangs");
  const Index thread = threadIdx, block = blockIdx;
  swapcontext(&fibers[fiber()], &home);
  threadIdx = thread, blockIdx = block;
}
inline void sync(Barrier& barrier, int count) {
  const int round = barrier.round;
  if (++barrier.arrived == count) {
    barrier.arrived = 0, barrier.round++;
    idle = 0;
    return;
  }
  while (barrier.round == round) yield();
}
inline void sync_warp() { sync(warps[fiber() / 32], 32); }

// what every lane of the warp gives, for every lane to read until the next exchange
template <class F> void exchange(const uint32_t* words, int count, F read) {
  const int warp = fiber() / 32;
  std::copy(words, words + count, published[warp][threadIdx.x]);
  sync_warp();
  read(published[warp]);
  sync_warp();
}
inline void enter() {
  body();
  done[fiber()] = true;
  idle = 0;
  swapcontext(&fibers[fiber()], &home);
}
inline void land(const Copy& copy) {
  if (copy.to + max(copy.whole, copy.bytes) > SHARED) return fail("a copy past shared memory");
  if (copy.bytes < copy.whole) std::memset(memory() + copy.to, 0, copy.whole);
  std::memcpy(memory() + copy.to, copy.from, copy.bytes);
}
inline void run_cluster() {
  const int count = gridDim.x * multicast, each = threads_of_block(), threads = each * count;
  const unsigned first = blockIdx.y;
  std::memset(memories, 0xA5, count * SHARED);
  copies.assign(threads, {});
  blocks.assign(count, {});
  std::fill(parcels, parcels + MOST_BLOCKS, Parcels{});
  cluster_in = cluster_out = {};
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
      threadIdx = {t % 32u, t % each / 32u % blockDim.y, t % each / 32u / blockDim.y};
      blockIdx.x = t / each % gridDim.x, blockIdx.y = first + t / each / gridDim.x;
      swapcontext(&home, &fibers[t]);
      if (failure) return;
    }
  }
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
    const int lane = threadIdx.x;
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
  blockDim = {config->blockDim.x, config->blockDim.y, config->blockDim.z};
  gridDim = {config->gridDim.x, config->gridDim.y, 1};
  body = [&] { kernel(given...); };
  failure = nullptr;
  multicast = 1;
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      multicast = config->attrs[i].val.clusterDim.y;
  if (gridDim.y % multicast || gridDim.x * multicast > MOST_BLOCKS) return cudaErrorInvalidValue;
  for (unsigned first = 0; first < gridDim.y && !failure; first += multicast) {
    blockIdx.y = first;
    run_cluster();
  }
  if (failure) std::fprintf(stderr, "%s\n", failure);
  return failure ? cudaErrorLaunchFailure : cudaSuccess;
}

}  // namespace emulated

#define cudaLaunchKernelEx emulated::launch
#define cudaFuncSetAttribute(kernel, name, value) (static_cast<void>(kernel), cudaSuccess)
#define cudaGetLastError() cudaSuccess
#define cudaGetDevice(device) (*(device) = 0, cudaSuccess)

inline void __syncwarp() { emulated::sync_warp(); }
inline void __syncthreads() { emulated::sync(emulated::blocks[emulated::block()], threads_of_block()); }
inline int __syncthreads_or(int value) {
  static int any[emulated::MOST_BLOCKS];
  any[emulated::block()] = 0;
  __syncthreads();
  any[emulated::block()] |= value;
  __syncthreads();
  const int found = any[emulated::block()];
  __syncthreads();
  return found;
}
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
inline float __uint_as_float(uint32_t bits) { return emulated::as_float(bits); }
inline uint32_t __float_as_uint(float value) { return emulated::as_bits(value); }
inline int __float2int_rn(float value) { return static_cast<int>(std::lrint(value)); }
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

inline uint4 load_once(const uint4* p) { return *p; }
inline uint32_t shared_address(const void* p) {
  return static_cast<const unsigned char*>(p) - emulated::memory();
}
inline void load_matrices(uint32_t at, uint32_t* b) {
  emulated::exchange(&at, 1, [&](uint32_t (*of)[8]) {
    const int lane = threadIdx.x;
    for (int i = 0; i < 4; i++)
      std::memcpy(b + i, emulated::memory() + of[8 * i + lane / 4][0] + lane % 4 * 4, 4);
  });
}
inline void copy_async(uint32_t shared, const void* global, int bytes = 16) {
  if ((shared | reinterpret_cast<uint64_t>(global)) & 15) return emulated::fail("a copy not of 16 bytes");
  emulated::copies[emulated::fiber()].push_back({shared, global, bytes});
}
inline void copies_arrived() {
  auto& copies = emulated::copies[emulated::fiber()];
  for (const emulated::Copy& copy : copies) emulated::land(copy);
  copies.clear();
}

inline void cluster_arrive() { emulated::sync(emulated::cluster_in, emulated::fibers.size()); }
inline void cluster_wait() { emulated::sync(emulated::cluster_out, emulated::fibers.size()); }
inline uint32_t word_of(uint32_t shared, int rank) {
  uint32_t word;
  std::memcpy(&word, emulated::memories[rank] + shared, 4);
  return word;
}
inline uint4 four_of(uint32_t shared, int rank) {
  uint4 four;
  std::memcpy(&four, emulated::memories[rank] + shared, sizeof four);
  return four;
}
inline void expect(uint32_t barrier, int bytes) {
  emulated::Parcels& own = emulated::parcels[emulated::block()];
  own.barrier = barrier, own.expected = bytes;
}
inline void multicast_bytes(uint32_t shared, const void* global, int bytes, uint32_t barrier, int mask) {
  if ((shared | reinterpret_cast<uint64_t>(global) | bytes) & 15)
    return emulated::fail("a parcel not of 16 bytes");
  for (int b = 0; b < emulated::MOST_BLOCKS; b++) {
    if (!(mask >> b & 1)) continue;
    if (emulated::parcels[b].expected < 0 || emulated::parcels[b].barrier != barrier)
      return emulated::fail("a parcel that nobody expects");
    emulated::parcels[b].sent.push_back({shared, global, bytes});
  }
}
inline void arrived(uint32_t barrier) {
  emulated::Parcels& own = emulated::parcels[emulated::block()];
  if (own.barrier != barrier) return emulated::fail("a barrier of nothing");
  for (;;) {
    int bytes = 0;
    for (const emulated::Copy& copy : own.sent) bytes += copy.bytes;
    if (bytes > own.expected) return emulated::fail("more parcels than expected");
    if (bytes == own.expected) break;
    emulated::yield();
  }
  for (const emulated::Copy& copy : own.sent) emulated::land(copy);
}
template <class T> T from_bits(uint32_t word) {
  if constexpr (T(0.5f) != 0) return emulated::as_float(word);
  else return word;
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
inline void launch_dependents() {}
inline void wait_for_previous_kernel() {}

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
inline void put_four(void* p, int64_t i, int type, const float (&v)[4]) {
  if ((reinterpret_cast<uint64_t>(p) + i * (type == 0 ? 4 : 2)) % (type == 0 ? 16 : 8))
    return emulated::fail("four outputs that do not lie together");
  for (int j = 0; j < 4; j++) put_number(p, i + j, type, v[j]);
}
inline int bytes_of(int type) { return type == 0 ? 4 : 2; }
