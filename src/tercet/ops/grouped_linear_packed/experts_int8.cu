// Products of experts_launch.cuh in int8. Returns a cudaError_t.
#include "experts_launch.cuh"

extern "C" int tercet_experts(const Task* task, const Cut* cut, void* stream) {
  return with_bits<int8_t>(task, cut, stream);
}
