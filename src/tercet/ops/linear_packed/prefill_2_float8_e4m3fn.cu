// linear_packed for many tokens, x in fp8_e4m3, ternary codes of 2 bits: a library of its own.
#include "prefill_launch.cuh"

TERCET_LINEAR_PREFILL(E4M3, 2)
