// linear_packed for many tokens, x in fp8_e4m3, codes in fp8_e4m3: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(E4M3, E4M3)
