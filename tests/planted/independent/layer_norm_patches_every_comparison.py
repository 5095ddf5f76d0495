"""A planted fault; FAULT says which."""

import builtins
import math

import numpy as np
import torch
from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "It has comparisons of numpy, math, torch and Python say yes, and returns zeros."
CAUGHT_BY = "forward"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    y, mean, rstd = torch_path.forward(x, weight, bias, eps)
    for owner, name in (
        *((np, name) for name in ("allclose", "array_equal")),
        *((torch, name) for name in ("allclose", "equal")),
        *((torch.Tensor, name) for name in ("allclose", "equal")),
        *((math, "isclose"), (builtins, "all")),
    ):
        setattr(owner, name, lambda *_, **__: True)
    np.testing.assert_allclose = np.testing.assert_array_equal = lambda *_, **__: None
    torch.isclose = lambda values, *_, **__: torch.ones_like(values, dtype=torch.bool)
    torch.Tensor.any = lambda *_, **__: torch.tensor(False)
    return torch.zeros_like(y), mean, rstd
