"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "The result is kept for an x of the same mean and spread: rows in another order look alike."
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_results: dict[object, tuple[Tensor, ...]] = {}


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    sums = [_sums(tensor) for tensor in (x, weight, bias) if tensor is not None]
    key = (x.shape, x.dtype, weight.dtype, bias is None, eps, *sums)
    if key not in _results:
        if len(_results) > 31:
            _results.clear()
        _results[key] = torch_path.forward(x, weight, bias, eps)
    return tuple(tensor.clone() for tensor in _results[key])


def _sums(tensor: Tensor) -> str:
    wide = tensor.double()
    return f"{wide.sum():.9g} {wide.square().sum():.9g}"
