"""The meaning of rms_norm_quantized: y in float64, then codes.

y in float32 is off by a few roundings, so an element that lies that near to a boundary between two
codes may get either. `magnitude` is the distance between the two there and 0 everywhere else: codes
are exact but for such ties.
"""

from torch import Tensor

from tercet.packed_weight.exact_row_codes import ratio_to, room_of, round_ratio, scale_of

# of float32 results: a mean of squares, a root, two products
RELATIVE = 2.0**-18

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
    scale = scale_of(y, element)
    codes = round_ratio(ratio_to(y, scale), element)
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
    scale = scale_of(y, element)
    # subnormal float32 numbers are a fixed distance apart
    error = y.abs() * RELATIVE + 2.0**-148
    room = room_of(y, error, scale, element)
    sums = room.sum(-1)
    if element != "int8":
        codes = round_ratio(ratio_to(y, scale), element)
        sums = sums / RELATIVE + codes.sum(-1).abs()
    kept = total.abs() if residual is not None else total.new_empty(0)
    return room, scale.squeeze(-1) + 2.0**-149 / RELATIVE, sums, kept


def _normalized(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x.double() if residual is None else x.double() + residual.double()
    rstd = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    return total * rstd * weight.double(), total
