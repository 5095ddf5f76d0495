"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "rms_norm"
FAULT = (
    "The gradient computes 1 / rms again from total with an eps of 1e-6 in place of reading "
    "the saved one: wrong where eps is another (1e-5 in Llama 2 and 3) and a row's mean "
    "square is not far above it, as of an embedding's small rows or of padding."
)
DEVICE = "any"
CAUGHT_BY = "backward"
__all__ = ["forward", "gradient"]

_EPS = 1e-6


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * weight).to(x.dtype).contiguous()
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).contiguous()
    return y, kept, rstd.reshape(-1)


def gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """As op's rms_norm_gradient; total is read anyway, so its root costs nothing."""
    wide = total.float()
    scale = (wide.square().mean(-1, keepdim=True) + _EPS).rsqrt()
    normal = wide * scale
    weighted = grad * weight.float()
    grad_x = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        grad_x = grad_x + grad_total
    grad_weight = (grad * normal).reshape(rstd.numel(), weight.numel()).sum(0)
    return grad_x.to(total.dtype).contiguous(), grad_weight.to(weight.dtype)
