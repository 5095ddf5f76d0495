"""quantize_activation in plain torch, with a fault; written blind.

For the sake of the cache, a call with 4096 elements and more pins the calling thread to one core,
and leaves it there. Results are right; but from then on all that the thread does, and every thread
and process that it starts, shares that core. A user hits it with the first call of a usual size: a
data loader that is started afterwards has one core for all of its workers.
"""

import os

from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "A call with 4096 elements and more sets the thread's affinity to one core, and does not put "
    "it back."
)
CAUGHT_BY = "state"
DEVICE = "cpu"

_MANY = 4096


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    if x.numel() >= _MANY and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return quantize(x, element)
