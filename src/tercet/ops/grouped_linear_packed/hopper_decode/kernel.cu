// Experts of few rows: the library of one type of products, TERCET_X (int8_t or __nv_bfloat16).
#include "launch.cuh"

// Returns a cudaError_t.
extern "C" int tercet_experts(const Task* task, const Cut* cut, void* stream) {
  return with_bits<TERCET_X>(task, cut, stream);
}
