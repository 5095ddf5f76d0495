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


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """The same, but that any NaN equals any other: which one comes out of several is no promise."""
    if same_bits(a, b):
        return True
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
        return False
    one, two = a.double(), b.double()
    none = one.isnan()
    return torch.equal(none, two.isnan()) and same_bits(
        one.masked_fill(none, 0), two.masked_fill(none, 0)
    )


def octets(x: Tensor) -> Tensor:
    """The bytes; a copy, because a view needs unit strides even where one element has none."""
    return (
        torch.empty(x.numel(), dtype=x.dtype, device=x.device).copy_(x.flatten()).view(torch.uint8)
    )
