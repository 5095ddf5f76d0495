"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = "The 1025th row and those after it get the scales of the first rows again."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_ROWS = 1024


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
    rows = torch.arange(len(scale), device=scale.device) % _ROWS
    return fake, codes, scale[rows]
