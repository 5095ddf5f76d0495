"""rms_norm in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = (
    "A module-level scratch buffer holds float32 intermediates of every call of one shape. "
    "Shows only where two threads call forward at the same time with equal shapes: each "
    "overwrites the other's intermediates. In one thread all is right (results are copied "
    "out)."
)
CAUGHT_BY = "forward"

_SCRATCH: dict = {}


def _scratch(like: Tensor) -> Tensor:
    key = (tuple(like.shape), like.device, torch.is_inference_mode_enabled())
    if key not in _SCRATCH:
        if len(_SCRATCH) >= 64:
            _SCRATCH.clear()
        _SCRATCH[key] = torch.empty(like.shape, dtype=torch.float32, device=like.device)
    return _SCRATCH[key]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm, without an allocation of float32 rows a call."""
    total = x.float() if residual is None else x.float() + residual
    scratch = _scratch(total)
    torch.mul(total, total, out=scratch)
    rstd = (scratch.mean(-1, keepdim=True) + eps).rsqrt()
    torch.mul(total, rstd, out=scratch)
    scratch.mul_(weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(scratch)
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
