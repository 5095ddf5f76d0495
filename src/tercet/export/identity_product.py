"""Reads a weight out of a program that only multiplies by it."""

from collections.abc import Callable

import torch
from torch import Tensor

_VALUES_AT_ONCE = 1 << 24


def identity_product(rows: int, columns: int, product: Callable[[Tensor], Tensor]) -> Tensor:
    """W [N, K] from a function x [M, K] -> x W^T [M, N] in float32, asked for the identity matrix.

    Every sum has one term that is not zero, so the result is W bit by bit, whatever the order of
    the additions.
    """
    weight = torch.empty(rows, columns)
    step = max(_VALUES_AT_ONCE // max(rows, columns, 1), 1)
    for start in range(0, columns, step):
        end = min(start + step, columns)
        ones = torch.zeros(end - start, columns)
        ones[:, start:end] = torch.eye(end - start)
        weight[:, start:end] = product(ones).T
    return weight
