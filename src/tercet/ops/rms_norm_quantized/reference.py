"""The meaning of rms_norm_quantized: y in float64, then codes.

y in float32 is off by a few roundings, so an element that lies that near to a boundary between two
codes may get either. `magnitude` is the distance between the two there and 0 everywhere else: codes
are exact but for such ties.
"""

import torch
from torch import Tensor

# of float32 results: a mean of squares, a root, two products
RELATIVE = 2.0**-18
_LIMITS = {"int8": 127.0, "fp8_e4m3": 448.0}

Results = tuple[Tensor, Tensor, Tensor, Tensor]


def reference(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    element: str = "int8",
) -> Results:
    """(codes [.., N], scale [..], row_sum [..], total [.., N] or empty), in float64."""
    y, total = _normalized(x, weight, residual, eps)
    scale = _scale(y, element)
    codes = _round(_ratio(y, scale), element)
    kept = total if residual is not None else total.new_empty(0)
    return codes, scale.squeeze(-1), codes.sum(-1), kept


def magnitude(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    element: str = "int8",
) -> Results:
    """The room of each result, over its tolerance: 1 for codes and int32, RELATIVE for float32."""
    y, total = _normalized(x, weight, residual, eps)
    scale = _scale(y, element)
    # subnormal float32 numbers are a fixed distance apart
    error = y.abs() * RELATIVE + 2.0**-148
    ratio, either_way = _ratio(y, scale), _ratio(error, scale)
    room = _round(ratio + either_way, element) - _round(ratio - either_way, element)
    sums = room.sum(-1)
    if element != "int8":
        codes = _round(ratio, element)
        sums = sums / RELATIVE + codes.sum(-1).abs()
    kept = total.abs() if residual is not None else total.new_empty(0)
    return room, scale.squeeze(-1) + 2.0**-149 / RELATIVE, sums, kept


def _normalized(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x.double() if residual is None else x.double() + residual.double()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    return total * rstd * weight.double(), total


def _scale(y: Tensor, element: str) -> Tensor:
    """absmax / limit [.., 1], rounded to float32: a subnormal one has few bits."""
    padded = torch.cat((y.abs(), y.new_zeros((*y.shape[:-1], 1))), -1)
    return (padded.amax(-1, keepdim=True) / _LIMITS[element]).float().double()


def _ratio(y: Tensor, scale: Tensor) -> Tensor:
    usable = (scale > 0) & scale.isfinite()
    return torch.where(usable, y / scale, 0.0)


def _round(ratio: Tensor, element: str) -> Tensor:
    """Ratios to the values of codes, ties to even."""
    limit = _LIMITS[element]
    if element == "int8":
        return ratio.round().clamp(-limit, limit)
    # + 0.0: a zero is never -0
    return ratio.clamp(-limit, limit).float().to(torch.float8_e4m3fn).float().double() + 0.0
