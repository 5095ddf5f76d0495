"""PackedCall: one call of a product with a packed weight; and what all such products share.

An activation is x as it is, or 8-bit codes of each row of x: given, with their x_scale, or made
inside as `quantize_activation` makes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import parse_scheme
from tercet.formats.scaling import Granularity
from tercet.kernel.contract import Tolerance
from tercet.kernel.one_device import on_one_device
from tercet.packed_weight.row_codes import ELEMENTS, ROW_CODES, quantize
from tercet.packed_weight.weight import PART_NAMES, PreparedWeight, name_parts
from tercet.packed_weight.weight import SCHEMA as WEIGHT_SCHEMA

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


# of linear_packed; `PackedCall.from_arguments` takes its arguments in this order
SCHEMA = (
    f"(Tensor x, {WEIGHT_SCHEMA}, Tensor? bias, Tensor? residual, Tensor? x_scale, Tensor? x_sum, "
    "str activation, ScalarType out_dtype) -> Tensor"
)
_OP = "linear_packed"
_NAMES = {dtype: str(dtype)[6:] for dtype in FLOATS}


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedCall:
    """One call of linear_packed, y = x W^T + bias + residual: what its implementations take.

    Attributes:
        x: [..., K], floats, or codes with their x_scale.
        weight: W [N, K].
        bias: floats [N], or None.
        residual: [..., N] in out_dtype, or None.
        x_scale: float32 [...], of codes; else None.
        x_sum: int32 or float32 [...], the sum of a row's codes, or None.
        activation: "none", or the element of the codes that x is, or is to be quantized to.
        out_dtype: of y.
    """

    x: Tensor
    weight: PreparedWeight
    bias: Tensor | None
    residual: Tensor | None
    x_scale: Tensor | None
    x_sum: Tensor | None
    activation: str
    out_dtype: torch.dtype

    @classmethod
    def from_arguments(cls, *arguments: Any) -> "PackedCall":
        """The call of the op's flat arguments. UnsupportedError for what does not fit, in words."""
        x, *parts, bias, residual, x_scale, x_sum, activation, out_dtype = arguments
        call = cls(
            x=x,
            weight=PreparedWeight.from_parts(*parts),
            bias=bias,
            residual=residual,
            x_scale=x_scale,
            x_sum=x_sum,
            activation=activation,
            out_dtype=out_dtype,
        )
        call._validate()
        return call

    def _validate(self) -> None:
        x, (rows, columns), leading = self.x, self.weight.shape, self.x.shape[:-1]
        if x.dim() == 0 or x.shape[-1] != columns:
            raise UnsupportedError(
                f"{_OP}: x has shape {list(x.shape)}, the weight is [{rows}, {columns}]: "
                f"the last axis of x must be {columns}"
            )
        validate_activation(_OP, x, self.x_scale, self.activation, self.out_dtype)
        # what is left out costs nothing here: a call of one token is mostly Python
        if self.x_scale is not None:
            self._validate_one("x_scale", self.x_scale, leading, (torch.float32,))
        if self.x_sum is not None:
            self._validate_one("x_sum", self.x_sum, leading, (torch.float32, torch.int32))
        if self.bias is not None:
            self._validate_one("bias", self.bias, (rows,), FLOATS)
        if self.residual is not None:
            self._validate_one("residual", self.residual, (*leading, rows), (self.out_dtype,))
        on_one_device(_OP, "x", x, **{"the weight": self.weight.codes})

    def _validate_one(
        self, name: str, value: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
    ) -> None:
        validate_tensor(_OP, name, value, shape, dtypes)
        on_one_device(_OP, "x", self.x, **{name: value})

    @property
    def sizes(self) -> dict[str, int]:
        """The axes by name."""
        rows, columns = self.weight.shape
        return {"M": self.x.shape[:-1].numel(), "N": rows, "K": columns}

    @property
    def options(self) -> dict[str, Any]:
        """What implementations are chosen by, beside sizes and x's dtype; see `traits`."""
        return {
            "scheme": self.weight.scheme,
            "activation": self.activation,
            "layout": self.weight.layout,
            "out": _NAMES[self.out_dtype],
        }


def resolve_output(
    x: Tensor, activation: str, out_dtype: torch.dtype | None
) -> tuple[str, torch.dtype]:
    """Activation and output dtype where they are left open: codes have their own, and bfloat16."""
    if x.dtype in CODES:
        return CODES[x.dtype] if activation == "none" else activation, out_dtype or torch.bfloat16
    return activation, out_dtype or x.dtype


def validate_activation(
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


def validate_tensor(
    op: str,
    name: str,
    value: Tensor | None,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """UnsupportedError unless the tensor of that name is missing, or of this shape and a dtype."""
    if value is not None and (value.shape != shape or value.dtype not in dtypes):
        allowed = " or ".join(str(dtype)[6:] for dtype in dtypes)
        raise UnsupportedError(
            f"{op}: {name} is {value.dtype} {list(value.shape)}: it must be {allowed} {list(shape)}"
        )


def quantize_input(
    x: Tensor, x_scale: Tensor | None, activation: str
) -> tuple[Tensor, Tensor | None]:
    """Codes and scales of x for the activation; x as it is where it has codes, or needs none."""
    if activation == "none" or x_scale is not None:
        return x, x_scale
    codes, scales, _ = quantize(x, activation)
    return codes, scales


def apply_epilogue(
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
    weight = PreparedWeight.from_parts(*(arguments[name] for name in PART_NAMES))
    return {**arguments, **name_parts(weight.to_layout("fragments").parts)}


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
