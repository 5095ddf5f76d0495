"""softmax in plain torch, with a fault; written blind."""

from torch import Tensor

OP = "softmax"
FAULT = (
    "Rows that are one row expanded (stride 0) are computed once, and y is expanded as well. "
    "Shows for a two-dimensional x with stride 0 along rows and more than one row: values are "
    "right, but all rows of y are one memory, with strides other than the fake's."
)
CAUGHT_BY = "forward"


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    if x.dim() == 2 and x.shape[0] > 1 and x.stride(0) == 0:
        return forward(x[:1], scale).expand(x.shape)
    values = x.float()
    if x.numel():
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
