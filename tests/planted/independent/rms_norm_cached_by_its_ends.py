"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm import torch_path
from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "The result is kept for inputs whose first and last elements are alike."
CAUGHT_BY = "stale"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_results: dict[object, tuple[Tensor, ...]] = {}


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    key = (x.shape, x.dtype, eps, *(_ends(tensor) for tensor in (x, weight, residual)))
    if key not in _results:
        if len(_results) > 31:
            _results.clear()
        _results[key] = torch_path.forward(x, weight, residual, eps)
    return tuple(tensor.clone() for tensor in _results[key])


def _ends(tensor: Tensor | None) -> tuple[object, ...]:
    if tensor is None or not tensor.numel():
        return (tensor is None,)
    last = tuple(size - 1 for size in tensor.shape)
    return (tensor.dtype, tensor[(0,) * tensor.dim()].item(), tensor[last].item())
