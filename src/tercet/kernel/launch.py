"""What launchers of row-wise kernels share: rows of a tensor, programs of a persistent grid."""

from functools import cache
from typing import cast

import torch
from torch import Tensor

_INTERPRETED = 3


def as_rows(x: Tensor) -> Tensor:
    """x [..., N] as [M, N] with unit stride along N; a view where strides allow, else a copy."""
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return rows if rows.stride(-1) == 1 or rows.shape[-1] <= 1 else rows.contiguous()


def multiprocessors(device: torch.device) -> int:
    """How many run at once on the GPU; a few where a kernel is interpreted, so that loops loop."""
    return _count(device.index or 0) if device.type == "cuda" else _INTERPRETED


@cache
def _count(index: int) -> int:
    return cast(int, torch.cuda.get_device_properties(index).multi_processor_count)
