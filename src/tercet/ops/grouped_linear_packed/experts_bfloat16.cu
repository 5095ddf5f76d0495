// Products of experts_launch.cuh in bfloat16. Returns a cudaError_t.
#include "experts_launch.cuh"

extern "C" int tercet_experts(const Task* task, const Cut* cut, void* stream) {
  return with_bits<__nv_bfloat16>(task, cut, stream);
}
