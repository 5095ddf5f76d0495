"""The meaning of swiglu_quantized: y in float64, then codes.

y in float32 is off by a few roundings, so an element that lies that near to a boundary between two
codes may get either. `magnitude` is the distance between the two there and 0 everywhere else: codes
are exact but for such ties.
"""

import torch
from torch import Tensor

from tercet.packed_weight.exact_row_codes import ratio_to, room_of, round_ratio, scale_of

# of float32 results: an exponential, a quotient, two products
RELATIVE = 2.0**-18
# a sigmoid below the smallest normal float32 may be flushed to zero; times an infinity that is NaN
_FLUSHED = 2.0**-126


def reference(
    gate: Tensor, up: Tensor | None = None, element: str = "int8"
) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [.., N], scale [..], row_sum [..]), in float64; up None: gate holds both halves."""
    y, _ = _activated(gate, up)
    scale = scale_of(y, element)
    codes = round_ratio(ratio_to(y, scale), element)
    return codes, scale.squeeze(-1), codes.sum(-1)


def magnitude(
    gate: Tensor, up: Tensor | None = None, element: str = "int8"
) -> tuple[Tensor, Tensor, Tensor]:
    """The room of each result, over its tolerance: 1 for codes and int32, RELATIVE for float32."""
    y, error = _activated(gate, up)
    scale = scale_of(y, element)
    room = room_of(y, error, scale, element)
    sums = room.sum(-1)
    if element != "int8":
        codes = round_ratio(ratio_to(y, scale), element)
        sums = sums / RELATIVE + codes.sum(-1).abs()
    off = scale_of(error, element).squeeze(-1) / RELATIVE
    return room, torch.where(error.isnan().any(-1), torch.nan, off), sums


def _activated(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """y, and what float32 may be off by: exp(-gate) by |gate| times its rounding."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    gate, up = gate.double(), up.double()
    sigmoid = torch.sigmoid(gate)
    y = gate * sigmoid * up
    grown = RELATIVE * (1 + (-gate).clamp(0, 128) / 32)
    # subnormal float32 numbers are a fixed distance apart
    error = y.abs() * grown + (gate * up).abs() * _FLUSHED + 2.0**-148
    return y, torch.where((sigmoid < _FLUSHED) & up.isinf(), torch.nan, error)
