"""A planted fault; FAULT says which."""

from collections.abc import Callable

from torch import Tensor

from tercet.ops.softmax import torch_path
from tercet.ops.softmax.torch_path import gradient

OP = "softmax"
FAULT = (
    "Kernels are specialised for a scale and kept under the scale rounded to six decimals: the "
    "second of two scales that agree so far, as all below 5e-7 do, runs with the first one's."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_kernels: dict[float, Callable[[Tensor], Tensor]] = {}


def _specialise(scale: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch_path.forward(x, scale)


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax, by the kernel of that scale."""
    key = round(scale, 6)
    if key not in _kernels:
        _kernels[key] = _specialise(scale)
    return _kernels[key](x)
