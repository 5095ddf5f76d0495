// Products of experts_wide.cuh in int8.
#include "experts_wide.cuh"

TERCET_EXPERTS_WIDE(INT8)
