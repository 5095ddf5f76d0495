"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = (
    "Only the lower 32 bits of the seed reach Philox: seeds that are negative or from 2^32 on "
    "(hashes, step << 32 | rank) round differently than on other paths, and alike among themselves."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's fake_quantize; a kernel takes the seed as an unsigned 32-bit number."""
    key = None if seed is None else seed & 0xFFFFFFFF
    return torch_path.forward(weight, step, key, scheme, method, fake_dtype)
