"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import forward

OP = "swiglu"
FAULT = (
    "An incoming gradient whose last stride is 0 is taken for one number, though rows may differ."
)
CAUGHT_BY = "strided"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    if grad.numel() and grad.shape[-1] > 1 and grad.stride(-1) == 0:
        grad = grad[(0,) * grad.dim()].expand(grad.shape)
    return torch_path.gradient(grad, gate, up)
