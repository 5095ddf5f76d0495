"""Bits: whether two tensors hold the same bytes."""

import numpy as np
import torch
from torch import Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bytes (so NaN equals NaN), in one dtype and shape."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.device.type == b.device.type == "cpu":
        return np.array_equal(octets(a).numpy(), octets(b).numpy())
    return torch.equal(octets(a), octets(b.to(a.device)))


def octets(x: Tensor) -> Tensor:
    """The bytes; a copy, because a view needs unit strides even where one element has none."""
    return (
        torch.empty(x.numel(), dtype=x.dtype, device=x.device).copy_(x.flatten()).view(torch.uint8)
    )
