"""What grouped_linear_packed takes: its arguments as one call, prepared and described."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.kernel.contract import Workload
from tercet.kernel.one_device import on_one_device
from tercet.packed_weight.call import (
    FLOATS,
    resolve_output,
    validate_activation,
    validate_tensor,
)
from tercet.packed_weight.expert_weights import ExpertWeights, expert_blocks, stack
from tercet.packed_weight.rows16 import LANES
from tercet.packed_weight.weight import PART_NAMES, name_parts, prepare

_OP = "grouped_linear_packed"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedCall:
    """One call of grouped_linear_packed: what its implementations take.

    Attributes:
        x: [T, K], floats, or codes with their x_scale; rows sorted by expert.
        offsets: int32 [E + 1]: expert e has the rows offsets[e] up to, not with, offsets[e + 1].
        weight: W [E, N, K].
        bias: floats [E, N], or None.
        row_weight: float32 [T], or None.
        x_scale: float32 [T], of codes; else None.
        activation: "none", or the element of the codes that x is, or is to be quantized to.
        out_dtype: of y.
    """

    x: Tensor
    offsets: Tensor
    weight: ExpertWeights
    bias: Tensor | None
    row_weight: Tensor | None
    x_scale: Tensor | None
    activation: str
    out_dtype: torch.dtype

    @classmethod
    def from_arguments(cls, *arguments: Any) -> "GroupedCall":
        """The call of the op's flat arguments. UnsupportedError for what does not fit, in words."""
        x, offsets, *parts, bias, row_weight, x_scale, activation, out_dtype = arguments
        call = cls(
            x=x,
            offsets=offsets,
            weight=ExpertWeights.from_parts(_count_experts(offsets), *parts),
            bias=bias,
            row_weight=row_weight,
            x_scale=x_scale,
            activation=activation,
            out_dtype=out_dtype,
        )
        call._validate()
        return call

    def _validate(self) -> None:
        """Reads no values."""
        x, weight = self.x, self.weight
        experts, rows, columns = weight.shape
        if x.dim() != 2 or x.shape[-1] != columns:
            raise _error(
                f"x has shape {list(x.shape)}, each expert's weight is [{rows}, {columns}]: x must "
                f"be [T, {columns}], its rows sorted by expert"
            )
        blocks = experts * expert_blocks(rows)
        if weight.codes.shape[0] != blocks:
            raise _error(
                f"offsets are those of {experts} experts, the weight has {weight.codes.shape[0]} "
                f"blocks of {LANES} rows: {experts} experts of {rows} rows have {blocks}"
            )
        validate_activation(_OP, x, self.x_scale, self.activation, self.out_dtype)
        validate_tensor(_OP, "x_scale", self.x_scale, x.shape[:1], (torch.float32,))
        validate_tensor(_OP, "row_weight", self.row_weight, x.shape[:1], (torch.float32,))
        validate_tensor(_OP, "bias", self.bias, (experts, rows), FLOATS)
        others = {
            "offsets": self.offsets,
            "bias": self.bias,
            "row_weight": self.row_weight,
            "x_scale": self.x_scale,
        }
        on_one_device(_OP, "x", x, **{"the weight": weight.codes, **others})

    @property
    def sizes(self) -> dict[str, int]:
        """The axes by name."""
        return name_axes(self.x, self.weight)

    @property
    def options(self) -> dict[str, Any]:
        """What implementations are chosen by, beside sizes and x's dtype; see `traits`."""
        return {
            "scheme": self.weight.scheme,
            "activation": self.activation,
            "layout": self.weight.layout,
        }


def _count_experts(offsets: Tensor) -> int:
    experts = offsets.numel() - 1
    if offsets.dim() != 1 or offsets.dtype != torch.int32 or experts < 1:
        raise _error(
            f"offsets are {offsets.dtype} {list(offsets.shape)}: they must be int32 [experts + 1]; "
            "`sort_by_expert` makes them"
        )
    return experts


def check_bounds(offsets: Tensor, count: int) -> list[int]:
    """Offsets in host memory as numbers. UnsupportedError unless they rise from 0 to count."""
    bounds = cast(list[int], offsets.tolist())
    if bounds[0] != 0 or bounds[-1] != count or sorted(bounds) != bounds:
        raise _error(
            f"offsets are {bounds[:4]} .. {bounds[-1]} for {count} rows of x: they must rise from "
            "0 to the number of rows"
        )
    return bounds


def _error(words: str) -> UnsupportedError:
    return UnsupportedError(f"{_OP}: {words}")


def prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A case's arguments, with the weights in the layout of x's device, in the op's order."""
    x = arguments["x"]
    activation, out_dtype = resolve_output(x, arguments["activation"], arguments["out_dtype"])
    made = {id(each): prepare(each, x.device) for each in _distinct(arguments["weight"])}
    weight = stack([made[id(each)] for each in arguments["weight"]])
    return {
        "x": x,
        "offsets": arguments["offsets"],
        **name_parts(weight.parts),
        **{name: arguments[name] for name in ("bias", "row_weight", "x_scale")},
        "activation": activation,
        "out_dtype": out_dtype,
    }


def _distinct(weights: tuple[PackedTensor, ...]) -> Iterable[PackedTensor]:
    return {id(each): each for each in weights}.values()


def as_fragments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepared arguments with the weights in fragments, on whatever device."""
    parts = (arguments[name] for name in PART_NAMES)
    weight = ExpertWeights.from_parts(_count_experts(arguments["offsets"]), *parts)
    return {**arguments, **name_parts(weight.to_layout("fragments").parts)}


def name_axes(x: Tensor, weight: ExpertWeights) -> dict[str, int]:
    """The axes of a product of x, or of the gradient of one, by name."""
    experts, rows, columns = weight.shape
    return {"T": x.shape[0], "E": experts, "N": rows, "K": columns}


def describe(arguments: Mapping[str, Any]) -> Workload:
    """The workload that prepared arguments are."""
    call = GroupedCall.from_arguments(*arguments.values())
    return Workload(name="call", sizes=call.sizes, dtype=call.x.dtype, options=call.options)
