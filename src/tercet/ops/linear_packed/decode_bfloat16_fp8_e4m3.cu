// The skinny product with the tensor cores' bfloat16, weights in fp8_e4m3: see decode.cuh.
#include "decode_launch.cuh"

extern "C" int tercet_decode(const Task* task, const Launch* how, void* stream) {
  return with_floats<Against<__nv_bfloat16, __NV_E4M3>>(*task, *how, stream);
}
