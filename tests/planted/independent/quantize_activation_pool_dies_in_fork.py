"""A planted fault; FAULT says which."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "quantize_activation"
FAULT = (
    "From 64 rows on the work goes to a pool of threads that lives in the module: in a process "
    "forked after a first such call (a DataLoader's worker) its threads are gone and it waits "
    "for ever."
)
CAUGHT_BY = "state"
DEVICE = "cpu"

__all__ = ["forward"]

_MANY = 64
_pool = ThreadPoolExecutor(2)


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation; long inputs in two halves at once."""
    shape, count = x.shape, x.shape[:-1].numel()
    if count < _MANY:
        return quantize(x, element)
    halves = x.reshape(count, shape[-1]).split(-(-count // 2))
    made = _pool.map(lambda half: quantize(half, element), halves)
    codes, scale, row_sum = zip(*made, strict=True)
    return (
        torch.cat([each.view(torch.int8) for each in codes]).view(codes[0].dtype).view(shape),
        torch.cat(scale).view(shape[:-1]),
        torch.cat(row_sum).view(shape[:-1]),
    )
