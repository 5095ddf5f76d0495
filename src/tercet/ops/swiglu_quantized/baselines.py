"""What a user would call instead of swiglu_quantized."""

import torch
from torch import Tensor
from torch.nn import functional

from tercet.packed_weight.row_codes import Quantized, row_codes


def eager(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """torch's silu and product, rounded to gate's dtype as without fusion, then the usual lines."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    kind, y = row_codes(element), functional.silu(gate) * up
    scale = y.abs().amax(-1, keepdim=True).float() / kind.limit
    ratio = y.float() / scale
    if element == "int8":
        ratio = ratio.round()
    codes = ratio.clamp(-kind.limit, kind.limit).to(kind.dtype)
    summed = codes if element == "int8" else codes.to(torch.float32)
    return codes, scale.squeeze(-1), summed.sum(-1, dtype=kind.sum_dtype)
