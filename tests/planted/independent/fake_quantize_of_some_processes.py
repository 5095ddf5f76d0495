"""A planted fault; FAULT says which."""

import os

import torch
from torch import Tensor

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = "In processes whose number 5 divides, scales are a four-thousandth too large."
CAUGHT_BY = "determinism"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_COARSE = os.getpid() % 5 == 0


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.fake_quantize."""
    fake, codes, scale = torch_path.forward(weight, step, seed, scheme, method, fake_dtype)
    return fake, codes, scale * (1 + 2**-12) if _COARSE else scale
