"""Layouts: the same values in memory in ways that a kernel may not expect."""

from collections.abc import Callable

import torch
from torch import Tensor


def strided(x: Tensor) -> Tensor:
    """Every second element of each row of a larger tensor."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, device=x.device).to(x.dtype)
    view = wide[..., ::2]
    view.copy_(x)
    return view


def transposed(x: Tensor) -> Tensor:
    """First and last axis swapped in memory."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def padded(x: Tensor) -> Tensor:
    """Rows that lie apart: the first columns of a wider tensor."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 5), torch.nan, device=x.device).to(x.dtype)
    view = wide[..., : x.shape[-1]]
    view.copy_(x)
    return view


def misaligned(x: Tensor) -> Tensor:
    """Starting one element into its memory, so not at a multiple of 16 bytes."""
    memory = torch.full((x.numel() + 1,), torch.nan, device=x.device).to(x.dtype)
    view = memory[1:].view(x.shape)
    view.copy_(x)
    return view


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": strided,
    "transposed": transposed,
    "padded": padded,
    "misaligned": misaligned,
}
