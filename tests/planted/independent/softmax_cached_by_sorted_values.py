"""A planted fault; FAULT says which."""

import hashlib

from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = "The result is kept for inputs of the same numbers in any order."
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_results: dict[object, Tensor] = {}


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    ordered = x.detach().float().flatten().sort()[0].cpu().numpy().tobytes()
    key = (x.shape, x.dtype, scale, hashlib.sha256(ordered).digest())
    if key not in _results:
        if len(_results) > 31:
            _results.clear()
        _results[key] = torch_path.forward(x, scale)
    return _results[key].clone()
