// linear_packed for many tokens, float16 x, codes in fp8_e5m2: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(FLOAT16, E5M2)
