// A small persistent thread pool. OpenMP would bring a second runtime beside torch's own, and the
// two fight over the cores.
//
// One 64-bit word holds the whole protocol: generation << 32 | open << 31 | workers inside. A worker
// joins an open job by adding one; the caller closes the job when no items are left and waits only
// for workers that did join, so a short job never waits for a sleeping worker.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace tercet {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // tens of cycles, as x86's pause; yield is none
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

class Pool {
 public:
  using Task = void (*)(void* context, long item);

  // Calls task(context, i) once for each i in [0, items); returns when all are done.
  void run(long items, int threads, Task task, void* context) {
    std::unique_lock<std::mutex> caller(callers_, std::try_to_lock);
    if (threads < 2 || items < 2 || !caller.owns_lock()) {
      for (long item = 0; item < items; ++item) task(context, item);
      return;
    }
    while (workers_ < threads - 1) std::thread(&Pool::work, this, workers_++).detach();
    task_ = task, context_ = context, items_ = items, limit_ = threads - 1;
    next_.store(0);
    state_.store((++generation_ << 32) | kOpen);
    if (sleepers_.load() > 0) {
      { std::lock_guard<std::mutex> lock(sleeping_); }
      wake_.notify_all();
    }
    drain();
    state_.fetch_and(~kOpen);
    for (int spins = 0; state_.load() & kInside; ++spins) {
      // past the spin, a worker of ours probably lost its core: let it have this one
      spins < 4096 ? relax() : std::this_thread::yield();
    }
  }

 private:
  static constexpr uint64_t kOpen = 1ull << 31;
  static constexpr uint64_t kInside = kOpen - 1;
  static constexpr auto kSpin = std::chrono::microseconds(50);

  void drain() {
    for (long item; (item = next_.fetch_add(1)) < items_;) task_(context_, item);
  }

  uint64_t wait_for_job(uint64_t seen) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i) {
        const uint64_t state = state_.load();
        if (state >> 32 != seen) return state;
        relax();
      }
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> lock(sleeping_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return state_.load() >> 32 != seen; });
    sleepers_.fetch_sub(1);
    return state_.load();
  }

  void work(int index) {
    for (uint64_t seen = 0;;) {
      uint64_t state = wait_for_job(seen);
      seen = state >> 32;
      while (state >> 32 == seen && (state & kOpen)) {
        if (!state_.compare_exchange_weak(state, state + 1)) continue;
        if (index < limit_) drain();
        state_.fetch_sub(1);
        break;
      }
    }
  }

  std::mutex callers_, sleeping_;
  std::condition_variable wake_;
  std::atomic<uint64_t> state_{0};
  std::atomic<long> next_{0};
  std::atomic<int> sleepers_{0};
  uint64_t generation_ = 0;
  int workers_ = 0, limit_ = 0;
  Task task_ = nullptr;
  void* context_ = nullptr;
  long items_ = 0;
};

// The process's pool. A forked child has none of its parent's threads, so it gets a new pool; pools
// are never destroyed, for their threads may outlive the end of main.
inline Pool& pool() {
  static std::mutex guard;
  static std::atomic<Pool*> current{nullptr};
  static std::atomic<long> owner{0};
  const long self = getpid();
  if (owner.load() != self) {
    std::lock_guard<std::mutex> lock(guard);
    if (owner.load() != self) {
      current.store(new Pool);
      owner.store(self);
    }
  }
  return *current.load();
}

}  // namespace tercet
