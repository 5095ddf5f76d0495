"""What a user would call instead of rms_norm_quantized."""

import torch
from torch import Tensor
from torch.nn import functional

from tercet.packed_weight.row_codes import row_codes


def eager(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torch's norm, rounded to x's dtype as it is without fusion, then the usual lines."""
    kind, total = row_codes(element), x if residual is None else x + residual
    y = functional.rms_norm(total, (x.shape[-1],), weight.to(x.dtype), eps)
    scale = y.abs().amax(-1, keepdim=True).float() / kind.limit
    ratio = y.float() / scale
    if element == "int8":
        ratio = ratio.round()
    codes = ratio.clamp(-kind.limit, kind.limit).to(kind.dtype)
    summed = codes if element == "int8" else codes.to(torch.float32)
    kept = total if residual is not None else x.new_empty(0)
    return codes, scale.squeeze(-1), summed.sum(-1, dtype=kind.sum_dtype), kept
