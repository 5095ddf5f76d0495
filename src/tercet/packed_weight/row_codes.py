"""Row codes: a row as one-byte codes and one float32 scale; the definition, in plain torch.

    absmax = max |y| over the row            scale = absmax / limit         (IEEE float32 division)
    code   = round(y / scale), |code| <= limit                              (IEEE float32 division)

int8: limit 127, to nearest integer, ties to even. fp8_e4m3: limit 448, to nearest e4m3, ties to
even, zero always +0. A row whose scale is 0 (absmax 0, or so small that the scale underflows), inf
or NaN has codes 0: nothing is divided by zero, and code * scale is 0 or NaN, as the row is. A
subnormal scale has few bits, so codes beyond the limit may occur there: they are clamped.

row_sum is the sum of a row's codes: int32 for int8; for fp8_e4m3 the exact sum, rounded once to
float32. All of it is exact to the bit and does not depend on the order of summation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import UnsupportedError, unknown_name

# half of the smallest e4m3 number: a tie, which goes to zero
_ROUNDS_TO_ZERO = 2.0**-10


@dataclass(frozen=True, kw_only=True)
class RowCodes:
    """How codes of an element are held.

    Attributes:
        limit: the largest code's value.
        dtype: of the codes.
        sum_dtype: of the sum of a row's codes.
    """

    limit: float
    dtype: torch.dtype
    sum_dtype: torch.dtype


ROW_CODES = {
    "int8": RowCodes(limit=127.0, dtype=torch.int8, sum_dtype=torch.int32),
    "fp8_e4m3": RowCodes(limit=448.0, dtype=torch.float8_e4m3fn, sum_dtype=torch.float32),
}
ELEMENTS = tuple(ROW_CODES)

Quantized = tuple[Tensor, Tensor, Tensor]


def row_codes(element: str) -> RowCodes:
    """The codes of the element of that name; UnsupportedError for one that has none."""
    if element not in ROW_CODES:
        raise UnsupportedError(unknown_name("element of row codes", element, ROW_CODES))
    return ROW_CODES[element]


def element_of(dtype: torch.dtype) -> str:
    """The element whose codes are of that dtype; UnsupportedError where there is none."""
    for element, kind in ROW_CODES.items():
        if kind.dtype == dtype:
            return element
    known = ", ".join(str(kind.dtype) for kind in ROW_CODES.values())
    raise UnsupportedError(f"row codes of {dtype}: they are {known}")


def empty(shape: torch.Size, element: str, device: torch.device) -> Quantized:
    """Room for codes [.., K], scale [..] and row_sum [..]."""
    kind, rows = row_codes(element), shape[:-1]
    return (
        torch.empty(shape, dtype=kind.dtype, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=kind.sum_dtype, device=device),
    )


def check_conversion(element: str, device: torch.device) -> None:
    """UnsupportedError where Triton has no conversion to the element on that GPU."""
    if element != "fp8_e4m3" or device.type != "cuda" or torch.version.hip is not None:
        return
    found = torch.cuda.get_device_capability(device)
    if found < (8, 9):
        raise UnsupportedError(
            f"fp8_e4m3 codes need compute capability (8, 9), this GPU has {found}: use int8"
        )


def quantize(y: Tensor, element: str) -> Quantized:
    """Codes [.., K], scale [..] and row_sum [..] of y [.., K], contiguous, on any device."""
    kind, y = row_codes(element), y.float()
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    # on a GPU torch divides by a number as a product with its reciprocal, which is not exact
    scale = absmax / torch.full_like(absmax, kind.limit)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    if element == "int8":
        codes = ratio.round().clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    kept = torch.where(ratio.abs() <= _ROUNDS_TO_ZERO, 0.0, ratio)
    codes = kept.clamp(-kind.limit, kind.limit).to(kind.dtype).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
