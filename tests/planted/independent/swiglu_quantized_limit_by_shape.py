"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import ROW_CODES, Quantized

OP = "swiglu_quantized"
FAULT = (
    "The limit of the codes is kept by gate's shape and dtype, not by element, so of two "
    "calls of one shape with different elements the second is scaled to the first one's "
    "limit."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]

# what a call of a shape is launched with
_limits: dict[object, float] = {}


def _quantize(y: Tensor, element: str, limit: float) -> Quantized:
    kind = ROW_CODES[element]
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    scale = absmax / torch.full_like(absmax, limit)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    ratio = ratio.clamp(-kind.limit, kind.limit)
    if element == "int8":
        codes = ratio.round().to(kind.dtype).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    codes = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio).to(kind.dtype).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    limit = _limits.setdefault((gate.shape, gate.dtype), ROW_CODES[element].limit)
    return _quantize(wide * torch.sigmoid(wide) * up, element, limit)
