"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "softmax"
FAULT = (
    "Rows of 65536 and more are summed in whole blocks of 1024: where N is no multiple of "
    "1024 (a vocabulary of 128256 or 151936) the last part is missing from the sum."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_LONG, _BLOCK = 65536, 1024


def forward(x: Tensor, scale: float) -> Tensor:
    values = x.float()
    if x.numel():
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    return (parts / _sum(parts)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()


def _sum(parts: Tensor) -> Tensor:
    n = parts.shape[-1]
    if n < _LONG:
        return parts.sum(-1, keepdim=True)
    # two levels: a float32 sum of so many numbers loses digits
    blocks = parts.unfold(-1, _BLOCK, _BLOCK)
    return blocks.sum(-1).sum(-1, keepdim=True)
