"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, row_codes

OP = "quantize_activation"
UNUSUAL = (
    "Fp8 codes by a search among the midpoints of the 127 e4m3 numbers; int8 by floor and a "
    "tie rule."
)
DEVICE = "any"
__all__ = ["forward"]


def _e4m3() -> Tensor:
    """float64 [127]: 0 .. 448, by code."""
    code = torch.arange(127, dtype=torch.float64)
    power, digits = (code / 8).floor(), code % 8
    return torch.where(power > 0, (8 + digits) * 2.0 ** (power - 10), digits * 2.0**-9)


def forward(x: Tensor, element: str) -> Quantized:
    """As op.quantize_activation."""
    kind, shape = row_codes(element), x.shape
    rows = x.float().reshape(shape[:-1].numel(), shape[-1])
    scale = torch.zeros(len(rows), dtype=torch.float32, device=x.device)
    if rows.numel():
        scale = torch.maximum(rows.amax(-1), -rows.amin(-1)).abs() / torch.full_like(
            scale, kind.limit
        )
    good = torch.isfinite(scale) & (scale > 0)
    ratio = (
        rows.masked_fill(~good[:, None], 0.0) / scale.masked_fill(~good, 1.0)[:, None]
    ).double()
    size = ratio.abs().clamp(max=kind.limit)
    if element == "int8":
        low = size.floor()
        up = (size - low > 0.5) | ((size - low == 0.5) & (low % 2 == 1))
        value = torch.where(ratio < 0, -(low + up), low + up)
        codes = value.to(torch.int8)
        row_sum = value.sum(-1).to(torch.int32)
    else:
        table = _e4m3().to(x.device)
        middle = (table[1:] + table[:-1]) / 2
        found = torch.searchsorted(middle, size)
        tie = (found < len(middle)) & (middle[found.clamp(max=len(middle) - 1)] == size)
        found = found + (tie & (found % 2 == 1))
        negative = (ratio < 0) & (found > 0)
        codes = (found + 128 * negative).to(torch.uint8).view(torch.float8_e4m3fn)
        value = torch.where(negative, -table[found], table[found])
        row_sum = value.sum(-1).float()
    lead = shape[:-1]
    return codes.reshape(shape), scale.reshape(lead), row_sum.reshape(lead)
