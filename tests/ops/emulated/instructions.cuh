// Stands in for paged_attention/hopper/instructions.cuh, beside ptx.cuh.
#pragma once
#include <map>

#include "packed_weight/hopper/ptx.cuh"

namespace emulated {
// of a thread: how many of its copies were under way when it closed each group
inline std::map<int, std::vector<size_t>> closed;
}  // namespace emulated

template <int BYTES> void copy_few_async(uint32_t shared, const void* global) {
  if ((shared | reinterpret_cast<uint64_t>(global)) % BYTES) return emulated::fail("a copy not at its own size");
  emulated::copies[emulated::fiber()].push_back({shared, global, BYTES, BYTES});
}
inline void close_group() {
  emulated::closed[emulated::fiber()].push_back(emulated::copies[emulated::fiber()].size());
}
template <int LEFT> void groups_arrived() {
  auto& copies = emulated::copies[emulated::fiber()];
  auto& closed = emulated::closed[emulated::fiber()];
  if (closed.size() <= LEFT) return;
  const size_t come = closed[closed.size() - LEFT - 1];
  for (size_t i = 0; i < come; i++) emulated::land(copies[i]);
  copies.erase(copies.begin(), copies.begin() + come);
  closed.erase(closed.begin(), closed.end() - LEFT);
  for (size_t& each : closed) each -= come;
}
inline void load_transposed(uint32_t at, uint32_t* b) {
  emulated::exchange(&at, 1, [&](uint32_t (*of)[8]) {
    const int lane = threadIdx.x;
    for (int i = 0; i < 4; i++) {
      uint16_t two[2];
      for (int j = 0; j < 2; j++)
        std::memcpy(two + j, emulated::memory() + of[8 * i + lane % 4 * 2 + j][0] + lane / 4 * 2, 2);
      std::memcpy(b + i, two, 4);
    }
  });
}
inline uint32_t transposed(uint32_t two) {
  uint32_t other = 0;
  emulated::exchange(&two, 1, [&](uint32_t (*of)[8]) {
    const int lane = threadIdx.x;
    for (int i = 0; i < 2; i++)
      other |= (of[(lane % 4 * 2 + i) * 4 + lane / 8][0] >> lane / 4 % 2 * 16 & 0xffffu) << 16 * i;
  });
  return other;
}
inline void put_there(uint32_t shared, int rank, float one, float other) {
  const float two[2] = {one, other};
  std::memcpy(emulated::memories[rank] + shared, two, sizeof two);
}
inline float power_of_two(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.f / x; }
