"""What a user would call instead of quantize_activation."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes


def eager(x: Tensor, element: str) -> Quantized:
    """The usual lines of torch; a row of zeros has NaN for codes before the cast."""
    kind = row_codes(element)
    scale = x.abs().amax(-1, keepdim=True).float() / kind.limit
    ratio = x.float() / scale
    if element == "int8":
        ratio = ratio.round()
    codes = ratio.clamp(-kind.limit, kind.limit).to(kind.dtype)
    summed = codes if element == "int8" else codes.to(torch.float32)
    return codes, scale.squeeze(-1), summed.sum(-1, dtype=kind.sum_dtype)
