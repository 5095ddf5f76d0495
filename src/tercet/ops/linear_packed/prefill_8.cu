// linear_packed for many tokens, int8 x, codes of 8 bits: a library of its own, built when needed.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(INT8, 8)
