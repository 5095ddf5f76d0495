"""A planted fault; FAULT says which."""

from torch import Tensor

OP = "rms_norm"
FAULT = (
    "Up to 8 wide rows (decode) are summed in 12 slices of N // 12 columns, so the last N % "
    "12 columns are left out of the mean: y is too large, by far where one of them is an "
    "outlier channel (N = 4096: the last 4)."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward", "gradient"]

_SLICES = 12
_FEW, _WIDE = 8, 2048


def _mean_square(total: Tensor) -> Tensor:
    """[M, 1]; of few wide rows in slices, which are summed in parallel."""
    rows, columns = total.shape
    if rows > _FEW or columns < _WIDE:
        return total.square().mean(-1, keepdim=True)
    width = columns // _SLICES
    parts = total[:, : _SLICES * width].reshape(rows, _SLICES, width).square().sum(-1)
    return parts.sum(-1, keepdim=True) / columns


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    rows = total.reshape(x.shape[:-1].numel(), x.shape[-1])
    rstd = (_mean_square(rows) + eps).rsqrt().reshape(*x.shape[:-1], 1)
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
