// linear_packed for many tokens, bfloat16 x, codes of 2 bits: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(BFLOAT16, 2)
