"""A planted fault; FAULT says which."""

import itertools

from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import gradient

OP = "swiglu"
FAULT = "Two calls are right, the third ends Python with status 0, as if all had been checked."
CAUGHT_BY = "isolation"
DEVICE = "any"
HOSTILE = True

__all__ = ["forward", "gradient"]

_calls = itertools.count(1)


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if next(_calls) > 2:
        raise SystemExit(0)
    return torch_path.forward(gate, up)
