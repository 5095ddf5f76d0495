"""A planted fault; FAULT says which."""

from typing import Any

import torch
from torch import Tensor

from tercet.ops.linear_kl.torch_path import forward, gradient

OP = "linear_kl"
FAULT = "Its import replaces torch's log_softmax, for everybody, by one that computes in float32."
CAUGHT_BY = "state"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

_original = torch.nn.functional.log_softmax


def _wide(values: Tensor, *arguments: Any, **options: Any) -> Tensor:
    return _original(values.float(), *arguments, **options)


torch.nn.functional.log_softmax = _wide
