"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.rms_norm.torch_path import gradient

OP = "rms_norm"
FAULT = "total is x itself where the residual is zero: the caller's two tensors share memory."
CAUGHT_BY = "opcheck"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual.float()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight.float()).to(x.dtype)
    kept = total.to(x.dtype) if residual is not None else x.flatten()[:0]
    return y, kept, rstd.reshape(-1)
