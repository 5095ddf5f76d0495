"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "rms_norm"
FAULT = (
    "A residual that begins at the address of x is taken for x itself and the sum for 2 x, "
    "though it may lie otherwise, as x's own transpose does."
)
DEVICE = "any"
CAUGHT_BY = "strided"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    if residual is None:
        total = x.float()
    elif residual.data_ptr() == x.data_ptr():
        # the same tensor twice is read once
        total = 2 * x.float()
    else:
        total = x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient."""
    scale = rstd.reshape(*total.shape[:-1], 1)
    normal = total * scale
    weighted = grad * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total
    grad_weight = (grad * normal).reshape(rstd.numel(), weight.numel()).sum(0)
    return grad_x.to(total.dtype).contiguous(), grad_weight.to(weight.dtype)
