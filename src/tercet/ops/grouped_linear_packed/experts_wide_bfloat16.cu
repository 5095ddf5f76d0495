// Products of experts_wide.cuh in bfloat16.
#include "experts_wide.cuh"

TERCET_EXPERTS_WIDE(BFLOAT16)
