"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "softmax"
FAULT = (
    "Of rows of more than 512 columns, blocks of 128 whose largest element is more than 40 "
    "below the row's maximum are skipped as negligible, so their shares are 0 though "
    "float32 holds them."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_SHORT, _BLOCK, _NEGLIGIBLE = 512, 128, 40.0


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    values = x.float()
    if x.numel():
        # first the difference, then the scale: near the maximum nothing is rounded off
        values = (values - values.amax(-1, keepdim=True)) * scale
    parts = values.exp()
    if x.shape[-1] > _SHORT:
        for block in range(0, x.shape[-1], _BLOCK):
            piece = slice(block, block + _BLOCK)
            far = values[..., piece].amax(-1, keepdim=True) < -_NEGLIGIBLE
            parts[..., piece] = parts[..., piece].masked_fill(far, 0.0)
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    p = y.float()
    return (scale * p * (grad - (grad * p).sum(-1, keepdim=True))).to(y.dtype).contiguous()
