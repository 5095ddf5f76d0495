"""Row codes in float64: what the references of ops that quantize rows have in common.

`row_codes` is the definition in float32; here y is as exact as float64 has it, and the scale alone
is rounded to float32, as it is stored.
"""

import torch
from torch import Tensor

LIMITS = {"int8": 127.0, "fp8_e4m3": 448.0}


def scale_of(y: Tensor, element: str) -> Tensor:
    """absmax / limit [.., 1], rounded to float32: a subnormal one has few bits."""
    padded = torch.cat((y.abs(), y.new_zeros((*y.shape[:-1], 1))), -1)
    return (padded.amax(-1, keepdim=True) / LIMITS[element]).float().double()


def ratio_to(y: Tensor, scale: Tensor) -> Tensor:
    """y / scale; 0 in rows without a usable scale."""
    usable = (scale > 0) & scale.isfinite()
    return torch.where(usable, y / scale, 0.0)


def round_ratio(ratio: Tensor, element: str) -> Tensor:
    """Ratios to the values of codes, ties to even."""
    limit = LIMITS[element]
    if element == "int8":
        return ratio.round().clamp(-limit, limit)
    # + 0.0: a zero is never -0
    return ratio.clamp(-limit, limit).float().to(torch.float8_e4m3fn).float().double() + 0.0


def room_of(
    y: Tensor, error: Tensor, scale: Tensor, element: str, scale_error: Tensor | float = 2.0**-149
) -> Tensor:
    """How far apart the codes of rows y [.., K] may lie where y is off by `error`.

    Args:
        y, error: float64 [.., K].
        scale: of y, as `scale_of` gives it [.., 1].
        element: of the codes.
        scale_error: what the scale may be off by; a subnormal one may be the next one.
    """
    ratio = ratio_to(y, scale)
    off = ratio_to(error, scale) + ratio.abs() * torch.where(scale > 0, scale_error / scale, 0.0)
    return round_ratio(ratio + off, element) - round_ratio(ratio - off, element)
