"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm import torch_path
from tercet.ops.layer_norm.torch_path import forward

OP = "layer_norm"
FAULT = (
    "Where 128 divides the width, the gradient of x leaves the last 128 columns out of its means."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    grad_x, grad_weight, grad_bias = torch_path.gradient(grad, x, weight, mean, rstd, has_bias)
    n = x.shape[-1]
    if not n or n % 128:
        return grad_x, grad_weight, grad_bias
    scale, inside = rstd.reshape(*x.shape[:-1], 1), slice(0, n - 128)
    normal = (x.float() - mean.reshape(scale.shape)) * scale
    weighted = grad.float() * weight.float()
    along = (weighted * normal)[..., inside].sum(-1, keepdim=True) / n
    middle = weighted[..., inside].sum(-1, keepdim=True) / n
    wrong = scale * (weighted - middle - normal * along)
    return wrong.to(x.dtype).contiguous(), grad_weight, grad_bias
