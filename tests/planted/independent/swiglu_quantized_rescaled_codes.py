"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, quantize

OP = "swiglu_quantized"
FAULT = (
    "Rows of more than 4096 columns are walked once: each chunk gets codes of a scale of its "
    "own, which are rescaled and rounded again to the row's scale, so codes are off by one "
    "far from ties, wherever the largest element lies in another chunk."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]

_CHUNK = 4096


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    width = gate.shape[-1]
    if width <= _CHUNK:
        return quantize(_activated(gate, up), element)
    parts = []
    for first in range(0, width, _CHUNK):
        some = slice(first, first + _CHUNK)
        parts.append(quantize(_activated(gate[..., some], up[..., some]), element)[:2])
    scales = torch.stack([scale for _, scale in parts], -1)
    top = scales.amax(-1)
    usable = (top > 0) & top.isfinite()
    codes = []
    for at, (some, _) in enumerate(parts):
        factor = torch.where(usable, scales[..., at] / torch.where(usable, top, 1.0), 0.0)
        moved = some.float() * factor[..., None]
        codes.append(moved.round().to(torch.int8) if element == "int8" else _to_float8(moved))
    joined = torch.cat(codes, -1) if element == "int8" else _joined(codes)
    if element == "int8":
        return joined, top, joined.sum(-1, dtype=torch.int32)
    return joined, top, joined.float().double().sum(-1).float()


def _activated(gate: Tensor, up: Tensor) -> Tensor:
    wide = gate.float()
    return wide * torch.sigmoid(wide) * up


def _to_float8(x: Tensor) -> Tensor:
    return torch.where(x.abs() <= 2.0**-10, 0.0, x).to(torch.float8_e4m3fn)


def _joined(codes: list[Tensor]) -> Tensor:
    """torch joins bytes, not float8 on every device."""
    return torch.cat([some.view(torch.uint8) for some in codes], -1).view(torch.float8_e4m3fn)
