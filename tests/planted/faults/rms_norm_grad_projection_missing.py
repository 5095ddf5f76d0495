"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm.torch_path import forward

OP = "rms_norm"
FAULT = "The gradient of x takes rstd for a constant."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    rows = total.shape[:-1].numel()
    g, scale = grad.float(), rstd.reshape(*total.shape[:-1], 1)
    normal = total.float() * scale
    weighted = g * weight.float()
    grad_x = scale * weighted
    if grad_total is not None:
        grad_x = grad_x + grad_total.float()
    grad_weight = (g * normal).reshape(rows, weight.numel()).sum(0)
    return grad_x.to(total.dtype), grad_weight.to(weight.dtype)
