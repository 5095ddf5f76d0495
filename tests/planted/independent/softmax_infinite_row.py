"""softmax in plain torch, on any device, in float32."""

import torch
from torch import Tensor

OP = "softmax"
FAULT = (
    "The maximum is taken as 0 where it is infinite, which guards rows of -inf: of a row that "
    "has +inf only that element becomes NaN and all others 0, where the whole row has to be "
    "NaN; all else is right."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        top = values.amax(-1, keepdim=True)
        # -inf minus itself would be NaN
        values = (values - torch.where(top.isinf(), 0.0, top)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
