"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = (
    "Forward: the centered rows lie in a scratch buffer that threads share; wrong where two "
    "threads call it with equal shapes at once."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]


_scratch: dict[tuple[object, ...], Tensor] = {}


def _scratch_of(x: Tensor) -> Tensor:
    """float32 room like x, allocated once a shape."""
    key = x.device, x.shape
    if key not in _scratch:
        with torch.inference_mode(False):
            _scratch[key] = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    return _scratch[key]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    centered = _scratch_of(x)
    mean = x.mean(-1, keepdim=True, dtype=torch.float32)
    # again, for what the first sum rounded off: a constant row has to become zeros
    mean = mean + (x - mean).mean(-1, keepdim=True)
    torch.sub(x, mean, out=centered)
    rstd = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = centered.mul_(rstd) * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype).contiguous(), mean.reshape(-1), rstd.reshape(-1)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    scale = rstd.reshape(*x.shape[:-1], 1)
    normal = (x - mean.reshape(scale.shape)) * scale
    weighted = grad * weight.float()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - weighted.mean(-1, keepdim=True) - normal * along)
    # the number of rows is given: -1 cannot be inferred where N is 0
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (grad * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = grad.reshape(shape).sum(0, dtype=torch.float32).to(weight.dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
