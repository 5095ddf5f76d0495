// The skinny product with the tensor cores' bfloat16: see decode.cuh. A library of its own, because
// all instances together take minutes to compile.
#include "decode_launch.cuh"

extern "C" int tercet_decode(const Task* task, const Launch* how, void* stream) {
  return with_bits<__nv_bfloat16>(*task, *how, stream);
}
