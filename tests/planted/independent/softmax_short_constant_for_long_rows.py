"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "softmax"
FAULT = (
    "Rows of more than 16384 columns take exp2 with log2(e) written to six digits, which is"
    " off by 3.5e-6 of the exponent."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_LONG, _LOG2_E = 16384, 1.44269


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp() if x.shape[-1] <= _LONG else (values * _LOG2_E).exp2()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
