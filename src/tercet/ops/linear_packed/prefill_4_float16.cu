// linear_packed for many tokens, float16 x, codes of 4 bits: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(FLOAT16, 4)
