"""A planted fault; FAULT says which."""

from functools import lru_cache

import torch
from torch import Tensor

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = (
    "What was computed without a seed is kept under the weight and its version in a cache of 16 "
    "entries: the weights and results of a deleted model stay in memory for the process's life."
)
CAUGHT_BY = "memory"
DEVICE = "any"

__all__ = ["forward", "gradient"]


@lru_cache(maxsize=16)
def _kept(
    weight: Tensor, version: int, scheme: str, method: str, fake_dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    del version
    return torch_path.forward(weight, None, None, scheme, method, fake_dtype)


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's fake_quantize; microbatches of a step share one weight."""
    if step is not None or seed is not None or weight.is_inference():
        return torch_path.forward(weight, step, seed, scheme, method, fake_dtype)
    fake, codes, scale = _kept(weight, weight._version, scheme, method, fake_dtype)
    return fake.clone(), codes.clone(), scale.clone()
