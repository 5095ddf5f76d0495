"""rms_norm_quantized in plain torch, with a fault; written blind."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import quantize

OP = "rms_norm_quantized"
FAULT = (
    "A contiguous x is read from the start of its storage, wherever x begins. Shows where x "
    "is a contiguous view with an offset (a slice of rows of a larger tensor)."
)
CAUGHT_BY = "forward"


def _as_rows(x: Tensor) -> Tensor:
    """x [..., N] as [M, N], without the overhead of a reshape where it lies in one piece."""
    shape = (x.shape[:-1].numel(), x.shape[-1])
    if x.is_contiguous() and x.numel():
        whole = torch.empty(0, dtype=x.dtype, device=x.device)
        return whole.set_(x.untyped_storage(), 0, shape, (shape[1], 1))
    return x.reshape(shape)


def forward(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As op.rms_norm_quantized."""
    total = _as_rows(x).float()
    if residual is not None:
        total = total + residual.reshape(total.shape)
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    codes, scale, row_sum = quantize(total * rstd * weight, element)
    kept = x.new_empty(0) if residual is None else total.to(x.dtype).reshape(x.shape).contiguous()
    return codes.reshape(x.shape), scale.reshape(x.shape[:-1]), row_sum.reshape(x.shape[:-1]), kept
