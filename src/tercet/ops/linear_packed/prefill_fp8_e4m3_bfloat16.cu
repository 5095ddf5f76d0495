// linear_packed for many tokens, bfloat16 x, codes in fp8_e4m3: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(BFLOAT16, E4M3)
