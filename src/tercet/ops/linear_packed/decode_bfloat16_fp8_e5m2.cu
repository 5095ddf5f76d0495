// The skinny product with the tensor cores' bfloat16, weights in fp8_e5m2: see decode.cuh.
#include "decode_launch.cuh"

extern "C" int tercet_decode(const Task* task, const Launch* how, void* stream) {
  return with_floats<Against<__nv_bfloat16, __NV_E5M2>>(*task, *how, stream);
}
