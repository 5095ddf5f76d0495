// linear_packed for many tokens, float16 x, codes in fp8_e4m3: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(FLOAT16, E4M3)
