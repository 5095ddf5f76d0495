"""What a key-value cache keeps each key and value of a head as: numbers, row codes, or 4 bits."""

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.packed_weight import int4_rows, row_codes
from tercet.packed_weight.row_codes import ROW_CODES

INT4 = "int4"

CACHED = (*ROW_CODES, INT4)
"""The names of what is no number: row codes of 8 bits, and `int4_rows`."""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_OF_DTYPE = {
    **{kind.dtype: name for name, kind in ROW_CODES.items()},
    int4_rows.DTYPE: INT4,
}

CODE_DTYPES = tuple(_OF_DTYPE)
"""Of codes."""

SCALE_DTYPES = (torch.float32, int4_rows.SCALE_DTYPE)
"""Of their scales."""


def kept_as(dtype: torch.dtype) -> str | None:
    """Which of CACHED codes of a dtype are; None where these are numbers."""
    return _OF_DTYPE.get(dtype)


def is_turned(dtype: torch.dtype) -> bool:
    """Whether keys of that dtype, and the queries that meet them, are `int4_rows.turn`ed."""
    return kept_as(dtype) == INT4


def width_of(part: Tensor) -> int:
    """D, the numbers of a row of keys or values [.., columns as they are kept]."""
    return part.shape[-1] * (2 if kept_as(part.dtype) == INT4 else 1)


def empty(
    rows: tuple[int, ...], width: int, kept: str | None, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Room for rows of `width` numbers, and for their scales where they are codes.

    Args:
        rows: how many, of any number of dimensions.
        width: D.
        kept: one of CACHED, or None for numbers.
        dtype: of numbers.
        device: where to.
    """
    if kept is None:
        return torch.empty(*rows, width, dtype=dtype, device=device), None
    if kept == INT4:
        int4_rows.check_width(width)
        scales = (*rows, 2 * int4_rows.groups(width))
        return (
            torch.empty(*rows, width // 2, dtype=int4_rows.DTYPE, device=device),
            torch.empty(scales, dtype=int4_rows.SCALE_DTYPE, device=device),
        )
    codes, scale, _ = row_codes.empty(torch.Size((*rows, width)), kept, device)
    return codes, scale


def quantize(y: Tensor, kept: str) -> tuple[Tensor, Tensor]:
    """Rows y [.., D] as codes, and their scales: float32 [..], of 4 bits bfloat16 [.., 2 C]."""
    if kept == INT4:
        return int4_rows.quantize(y)
    codes, scale, _ = row_codes.quantize(y, kept)
    return codes, scale


def numbers(part: Tensor, scales: Tensor | None) -> Tensor:
    """What rows as they are kept stand for [.., D], float32."""
    if scales is None:
        return part.float()
    if kept_as(part.dtype) == INT4:
        return int4_rows.dequantize(part, scales)
    return part.float() * scales.unsqueeze(-1)


def check_cached(
    op: str,
    name: str,
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
) -> None:
    """UnsupportedError where cached keys and values are neither numbers nor codes with scales.

    Args:
        op: for the message.
        name: of x, for the message.
        x: what the op computes from; keys and values that are numbers are of its dtype.
        keys, values: [.., D], or [.., D/2] of 4 bits.
        key_scales, value_scales: [..] of codes of 8 bits, [.., 2 C] of 4; None of numbers.
    """
    kept = kept_as(keys.dtype)
    fits = kept is not None or keys.dtype == x.dtype
    if x.dtype not in _FLOATS or values.dtype != keys.dtype or not fits:
        raise UnsupportedError(
            f"{op}: {name} is {x.dtype}, keys {keys.dtype}, values {values.dtype}: all must be "
            "float32, all float16 or all bfloat16, or keys and values both int8, both "
            "float8_e4m3fn, or both uint8 (4 bits)"
        )
    dtype, shape = torch.float32, list(keys.shape[:-1])
    if kept == INT4:
        dtype = int4_rows.SCALE_DTYPE
        shape.append(2 * int4_rows.groups(width_of(keys)))
    for which, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if (scales is not None) != (kept is not None):
            raise UnsupportedError(
                f"{op}: keys are {keys.dtype}, {which} {'None' if scales is None else 'given'}: "
                "codes (int8, float8_e4m3fn, uint8) need key_scales and value_scales, other keys "
                "have none"
            )
        if scales is not None and (scales.dtype != dtype or list(scales.shape) != shape):
            raise UnsupportedError(
                f"{op}: {which} are {scales.dtype} {list(scales.shape)}: for keys "
                f"{keys.dtype} {list(keys.shape)} they must be {dtype} {shape}"
            )
