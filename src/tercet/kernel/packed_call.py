"""Packed call: what every product with packed weights takes beside the weight, and how it ends.

An activation is x as it is, or 8-bit codes of each row of x: given, with their x_scale, or made
inside as `quantize_activation` makes them.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import parse_scheme
from tercet.formats.scaling import Granularity
from tercet.kernel.contract import Tolerance
from tercet.kernel.device.row_codes import ELEMENTS, ROW_CODES, quantize
from tercet.kernel.prepared import PreparedWeight

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
CODES = {kind.dtype: element for element, kind in ROW_CODES.items()}
INPUTS = (*FLOATS, *CODES)
ACTIVATIONS = ("none", *ELEMENTS)
SUMS = 2e-6  # what sums in float32 may be off by, of their magnitude
TOLERANCES = (
    Tolerance(
        dtype=torch.float32,
        relative=SUMS,
        reason="float32 sums; 8-bit codes with integer elements are exact up to the scales",
    ),
    Tolerance(
        dtype=torch.float16, relative=2**-11 + SUMS, reason="one rounding to 11 bits at the end"
    ),
    Tolerance(
        dtype=torch.bfloat16, relative=2**-8 + SUMS, reason="one rounding to 8 bits at the end"
    ),
)


def chosen(x: Tensor, activation: str, out_dtype: torch.dtype | None) -> tuple[str, torch.dtype]:
    """Activation and output dtype where they are left open: codes have their own, and bfloat16."""
    if x.dtype in CODES:
        return CODES[x.dtype] if activation == "none" else activation, out_dtype or torch.bfloat16
    return activation, out_dtype or x.dtype


def check_activation(
    op: str, x: Tensor, x_scale: Tensor | None, activation: str, out_dtype: torch.dtype
) -> None:
    """UnsupportedError where dtype of x, x_scale, activation and output do not go together."""
    coded = CODES.get(x.dtype)
    if coded is None and x.dtype not in FLOATS:
        raise UnsupportedError(
            f"{op}: x is {x.dtype}: allowed are float32, float16 and bfloat16, or codes "
            f"in {' and '.join(map(str, CODES))} with x_scale"
        )
    if activation not in ACTIVATIONS or out_dtype not in FLOATS:
        raise UnsupportedError(
            f"{op}: activation {activation!r} to {out_dtype}: activations are "
            f"{', '.join(ACTIVATIONS)}, outputs float32, float16 and bfloat16"
        )
    if (coded is None) != (x_scale is None) or (coded is not None and coded != activation):
        raise UnsupportedError(
            f"{op}: x is {x.dtype}, activation {activation!r}, "
            f"x_scale {'missing' if x_scale is None else 'given'}: codes come with their x_scale, "
            "and no other activation than their own; floats come without"
        )


def check_given(
    op: str,
    name: str,
    value: Tensor | None,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """UnsupportedError unless the tensor of that name is missing, or of this shape and a dtype."""
    if value is not None and (tuple(value.shape) != tuple(shape) or value.dtype not in dtypes):
        allowed = " or ".join(str(dtype)[6:] for dtype in dtypes)
        raise UnsupportedError(
            f"{op}: {name} is {value.dtype} {list(value.shape)}: it must be {allowed} {list(shape)}"
        )


def quantized(x: Tensor, x_scale: Tensor | None, activation: str) -> tuple[Tensor, Tensor | None]:
    """Codes and scales of x for the activation; x as it is where it has codes, or needs none."""
    if activation == "none" or x_scale is not None:
        return x, x_scale
    codes, scales, _ = quantize(x, activation)
    return codes, scales


def finished(
    y: Tensor,
    x_scale: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """y * x_scale + bias + residual in float32, rounded once; y [..., N] float32 is written to."""
    if x_scale is not None:
        y *= x_scale[..., None]
    if bias is not None:
        y += bias.float()
    if residual is not None:
        y += residual.float()
    return y.to(out_dtype)


def as_fragments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepared arguments with the weight in fragments, on whatever device."""
    weight = PreparedWeight(
        codes=arguments["codes"],
        scale=arguments["scale"],
        zero=arguments["zero"],
        scheme=arguments["scheme"],
        shape=(arguments["rows"], arguments["columns"]),
    )
    return {**arguments, "codes": weight.arranged("fragments").codes}


def traits(options: Mapping[str, Any]) -> dict[str, Any]:
    """What requirements may ask of a call, from its options.

    element: the element's name. group: columns that share a scale, 0 where a whole row does.
    zero: whether the weight has zero points. scale: the scales' dtype, as prepared. activation,
    layout, out: as they are given.
    """
    return {**options, **_traits_of(options["scheme"])} if "scheme" in options else dict(options)


@cache
def _traits_of(scheme: str) -> dict[str, Any]:
    parsed = parse_scheme(scheme)
    scaling = parsed.scaling
    wide = "float32" if scaling.second_level else scaling.dtype
    whole = scaling.granularity in (Granularity.TENSOR, Granularity.CHANNEL)
    return {
        "element": parsed.element.name,
        "group": 0 if whole else scaling.group_size,
        "zero": scaling.zero is not None,
        "scale": {"e8m0": "bfloat16", "e4m3": "float16"}.get(wide, wide),
    }
