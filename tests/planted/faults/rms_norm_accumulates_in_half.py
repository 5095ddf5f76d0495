"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = (
    "The sum of squares is accumulated in the dtype of x: in bfloat16 it stands still "
    "when N is large."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual.float()
    squares = total.new_zeros((*total.shape[:-1], 1)).to(x.dtype)
    for tile in total.square().split(16, -1):
        squares = (squares + tile.sum(-1, keepdim=True)).to(x.dtype)
    rstd = (squares.float() / total.shape[-1] + eps).rsqrt()
    y = (total * rstd * weight.float()).to(x.dtype)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype)
    return y, kept, rstd.reshape(-1)
