"""What launchers of row-wise kernels share: rows of a tensor, programs and stages of a grid."""

from functools import cache
from typing import cast

import torch
from torch import Tensor

_INTERPRETED = 3
_IN_FLIGHT_BYTES = 128 * 1024


def as_rows(x: Tensor) -> Tensor:
    """x [..., N] as [M, N] with unit stride along N; a view where strides allow, else a copy."""
    rows = x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return rows if rows.stride(-1) == 1 or rows.shape[-1] <= 1 else rows.contiguous()


def multiprocessors(device: torch.device) -> int:
    """How many run at once on the GPU; a few where a kernel is interpreted, so that loops loop."""
    return _count(device.index or 0) if device.type == "cuda" else _INTERPRETED


@cache
def _count(index: int) -> int:
    return cast(int, torch.cuda.get_device_properties(index).multi_processor_count)


def fitting_stages(wanted: int, tile_bytes: int) -> int:
    """As many stages of a loop as fit: all but one lie in shared memory.

    A configuration that was tuned for shorter rows, or narrower numbers, would exceed it.

    Args:
        wanted: by the configuration.
        tile_bytes: that one turn of the loop loads.
    """
    return max(1, min(wanted, 1 + _IN_FLIGHT_BYTES // tile_bytes))
