"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "softmax"
FAULT = (
    "The gradient multiplies y.float() in place, which for float32 is y itself: the result "
    "that the caller holds, and a second backward pass, are overwritten."
)
DEVICE = "any"
CAUGHT_BY = "backward"
__all__ = ["forward", "gradient"]


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    inner = grad - (grad * p).sum(-1, keepdim=True)
    return p.mul_(inner).mul(scale).to(y.dtype).contiguous()
