"""rms_norm in plain torch, with a fault; written blind."""

from torch import Tensor

OP = "rms_norm"
FAULT = (
    "Rows whose gradient of y is all zero are skipped, and their grad_total with them. Shows "
    "with a residual, where some rows of y's gradient are zero but total's gradient is not."
)
CAUGHT_BY = "forward"


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
    """As op's rms_norm_gradient. Tokens that are masked out have no gradient: they are skipped."""
    m, n = rstd.numel(), weight.numel()
    rows, grads = total.reshape(m, n), grad.reshape(m, n)
    # NaN is not 0, so it is kept
    some = (grads != 0).any(-1).nonzero()[:, 0]
    scale = rstd[some, None]
    picked = grads[some].float()
    normal = rows[some] * scale
    weighted = picked * weight.float()
    part = scale * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    if grad_total is not None:
        part = part + grad_total.reshape(m, n)[some]
    grad_x = rows.new_zeros((m, n)).index_copy_(0, some, part.to(total.dtype))
    return grad_x.reshape(total.shape), (picked * normal).sum(0).to(weight.dtype)
