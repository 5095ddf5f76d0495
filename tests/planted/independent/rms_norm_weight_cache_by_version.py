"""rms_norm in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

OP = "rms_norm"
FAULT = (
    "The float32 copy of a half weight is cached by address, shape, dtype and version "
    "counter. Shows when a half weight's memory is written without torch noticing (.data, "
    "another framework), or is freed and taken by another weight of the same shape whose "
    "version is the same too."
)
CAUGHT_BY = "forward"

_WIDE: dict = {}


def _wide(weight: Tensor) -> Tensor:
    if weight.dtype == torch.float32:
        return weight
    version = -1 if weight.is_inference() else weight._version
    key = (weight.data_ptr(), tuple(weight.shape), weight.stride(), weight.dtype, version)
    if key not in _WIDE:
        if len(_WIDE) > 256:
            _WIDE.clear()
        _WIDE[key] = weight.detach().float()
    return _WIDE[key]


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.rms_norm."""
    total = x.float() if residual is None else x.float() + residual
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (total * rstd * _wide(weight)).to(x.dtype).contiguous()
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
