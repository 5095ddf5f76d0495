// linear_packed for up to 16 tokens: the library of one type of products, TERCET_X (int8_t, __nv_bfloat16 or
// __half), and, where weights are 8-bit floats, of their type, TERCET_W (__NV_E4M3 or __NV_E5M2).
#include "launch.cuh"

extern "C" int tercet_decode(const Task* task, const Launch* how, void* stream) {
#ifdef TERCET_W
  return with_floats<Against<TERCET_X, TERCET_W>>(*task, *how, stream);
#else
  return with_bits<TERCET_X>(*task, *how, stream);
#endif
}
