// The skinny product with the tensor cores' int8: see decode.cuh. A library of its own, because
// all instances together take minutes to compile.
#include "decode_launch.cuh"

extern "C" int tercet_decode(const Task* task, const Launch* how, void* stream) {
  return with_bits<int8_t>(*task, *how, stream);
}
