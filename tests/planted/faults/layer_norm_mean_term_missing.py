"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = "The gradient of x lacks the term of the mean."
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    g, scale = grad.float(), rstd.reshape(*x.shape[:-1], 1)
    normal = (x.float() - mean.reshape(scale.shape)) * scale
    weighted = g * weight.float()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - normal * along)
    # the number of rows is given: -1 cannot be inferred where N is 0
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (g * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = g.reshape(shape).sum(0).to(weight.dtype) if has_bias else weight.new_empty(0)
    return grad_x.to(x.dtype), grad_weight, grad_bias
