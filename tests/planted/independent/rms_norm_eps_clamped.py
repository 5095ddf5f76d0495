"""rms_norm in plain torch, on any device, in float32."""

from torch import Tensor

OP = "rms_norm"
FAULT = (
    "Eps is the least mean square rather than added to it: wrong where the mean square of a "
    "row is not far above eps (small activations, a large eps); rows of ordinary size are "
    "right within rounding, as are rows of zeros."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    rstd = total.square().mean(-1, keepdim=True).clamp(min=eps).rsqrt()
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
