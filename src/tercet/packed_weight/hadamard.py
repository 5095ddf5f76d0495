"""Sums by Sylvester's Hadamard matrix: a butterfly of additions, exact in what it is given."""

import torch
from torch import Tensor


def hadamard_sums(x: Tensor, size: int) -> Tensor:
    """Each run of `size` columns of x [.., K] times the matrix of ones and minus ones.

    Args:
        x: of any dtype.
        size: a power of two that divides K.
    """
    work, half = x, 1
    while half < size:
        pairs = work.reshape(*x.shape[:-1], x.shape[-1] // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        work = torch.stack((first + second, first - second), dim=-2)
        half *= 2
    return work.reshape(x.shape)
