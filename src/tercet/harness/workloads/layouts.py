"""Layouts: the same values in memory in ways that a kernel may not expect."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def strided(x: Tensor, index: int = 0) -> Tensor:
    """Every second element of each row of a larger tensor."""
    del index
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, device=x.device).to(x.dtype)
    view = wide[..., ::2]
    view.copy_(x)
    return view


def transposed(x: Tensor, index: int = 0) -> Tensor:
    """First and last axis swapped in memory."""
    del index
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def padded(x: Tensor, index: int = 0) -> Tensor:
    """Rows that lie apart, those of each argument by another gap."""
    width = x.shape[-1] + 5 + index
    wide = torch.full((*x.shape[:-1], width), torch.nan, device=x.device).to(x.dtype)
    view = wide[..., : x.shape[-1]]
    view.copy_(x)
    return view


def misaligned(x: Tensor, index: int = 0) -> Tensor:
    """Starting one element into its memory, so not at a multiple of 16 bytes."""
    del index
    memory = torch.full((x.numel() + 1,), torch.nan, device=x.device).to(x.dtype)
    view = memory[1:].view(x.shape)
    view.copy_(x)
    return view


def heads_first(x: Tensor, index: int = 0) -> Tensor:
    """The two axes before the last swapped in memory, as attention has heads and positions."""
    del index
    return x.transpose(-3, -2).contiguous().transpose(-3, -2) if x.dim() > 2 else x


LAYOUTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "strided": strided,
    "transposed": transposed,
    "heads first": heads_first,
    "padded": padded,
    "misaligned": misaligned,
}


def lay_out(name: str, value: Any, index: int) -> Any:
    """A tensor with elements in that layout; anything else as it is."""
    if not isinstance(value, Tensor) or not value.dim() or not value.numel():
        return value
    return LAYOUTS[name](value, index)
