"""softmax in plain torch, with a fault; written blind."""

from torch import Tensor

OP = "softmax"
FAULT = (
    "In rows longer than 1024 the shift is the maximum of every eighth column only. Shows "
    "where N > 1024 and a column that is not sampled lies more than 88 / scale above all "
    "sampled ones (inf / inf = NaN), or where all sampled ones are -inf and others are not."
)
CAUGHT_BY = "forward"

_LONG, _STEP = 1024, 8


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax. Any shift near the maximum will do: it cancels in the quotient."""
    values = x.float()
    if x.numel():
        seen = values[..., ::_STEP] if x.shape[-1] > _LONG else values
        values = (values - seen.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
