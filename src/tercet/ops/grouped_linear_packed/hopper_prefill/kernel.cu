// Experts of many rows: the library of one type of products, TERCET_X (INT8 or BFLOAT16).
#include "launch.cuh"

// `rows` of x a tile. Returns a cudaError_t.
extern "C" int tercet_experts_wide(const Task* task, int bits, int rows, int blocks, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (bits == 2) return launch_rows<TERCET_X, 2>(*task, rows, blocks, on);
  if (bits == 4) return launch_rows<TERCET_X, 4>(*task, rows, blocks, on);
  return cudaErrorInvalidValue;
}
