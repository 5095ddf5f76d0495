"""A planted fault; FAULT says which."""

import random

import numpy as np
import torch
from torch import Tensor

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = "Rounding at random seeds Python's and numpy's own generators as well."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.fake_quantize."""
    if seed is not None:
        random.seed(int(seed))
        np.random.seed(int(seed) % 2**32)
    return torch_path.forward(weight, step, seed, scheme, method, fake_dtype)
