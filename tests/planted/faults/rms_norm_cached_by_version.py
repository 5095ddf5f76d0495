"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "The result is kept by address and torch's count of writes: a write around that count "
    "is not seen."
)
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_results: dict[object, tuple[Tensor, ...]] = {}


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    key = (x.data_ptr(), x._version, x.shape, x.stride(), x.dtype, residual is None)
    if key not in _results:
        _results[key] = (x, *torch_path.forward(x, weight, residual, eps))
    return tuple(tensor.clone() for tensor in _results[key][1:])
