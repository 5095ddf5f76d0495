"""What grouped_linear_packed takes: its arguments checked, prepared and described."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.kernel.contract import Workload
from tercet.kernel.one_device import on_one_device
from tercet.kernel.packed_call import FLOATS, check_activation, check_given, chosen
from tercet.kernel.prepared import layout_name, prepare
from tercet.kernel.rows16 import LANES
from tercet.kernel.stacked import StackedWeight, expert_blocks, stack

_OP = "grouped_linear_packed"


def check(
    x: Tensor,
    offsets: Tensor,
    codes: Tensor,
    bias: Tensor | None,
    row_weight: Tensor | None,
    x_scale: Tensor | None,
    rows: int,
    columns: int,
    activation: str,
    out_dtype: torch.dtype,
) -> None:
    """UnsupportedError for what does not fit, in words; reads no values."""
    if x.dim() != 2 or x.shape[-1] != columns:
        raise _error(
            f"x has shape {list(x.shape)}, each expert's weight is [{rows}, {columns}]: x must be "
            f"[T, {columns}], its rows sorted by expert"
        )
    experts = _experts(offsets, codes, rows)
    check_activation(_OP, x, x_scale, activation, out_dtype)
    check_given(_OP, "x_scale", x_scale, x.shape[:1], (torch.float32,))
    check_given(_OP, "row_weight", row_weight, x.shape[:1], (torch.float32,))
    check_given(_OP, "bias", bias, (experts, rows), FLOATS)
    others = {"offsets": offsets, "bias": bias, "row_weight": row_weight, "x_scale": x_scale}
    on_one_device(_OP, "x", x, **{"the weight": codes, **others})


def _experts(offsets: Tensor, codes: Tensor, rows: int) -> int:
    """How many experts there are."""
    experts = offsets.numel() - 1
    if offsets.dim() != 1 or offsets.dtype != torch.int32 or experts < 1:
        raise _error(
            f"offsets are {offsets.dtype} {list(offsets.shape)}: they must be int32 [experts + 1]; "
            "`sort_by_expert` makes them"
        )
    if codes.shape[0] != experts * expert_blocks(rows):
        raise _error(
            f"offsets are those of {experts} experts, the weight has {codes.shape[0]} blocks of "
            f"{LANES} rows: {experts} experts of {rows} rows have {experts * expert_blocks(rows)}"
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
    activation, out_dtype = chosen(x, arguments["activation"], arguments["out_dtype"])
    made = {id(each): prepare(each, x.device) for each in _distinct(arguments["weight"])}
    weight = stack([made[id(each)] for each in arguments["weight"]])
    return _in_order(weight, arguments) | {
        "activation": activation,
        "out_dtype": out_dtype,
    }


def _distinct(weights: tuple[PackedTensor, ...]) -> Iterable[PackedTensor]:
    return {id(each): each for each in weights}.values()


def as_fragments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepared arguments with the weights in fragments, on whatever device."""
    return _in_order(weight_of(arguments).arranged("fragments"), arguments)


def weight_of(arguments: Mapping[str, Any]) -> StackedWeight:
    """The weights of prepared arguments."""
    return StackedWeight(
        codes=arguments["codes"],
        scale=arguments["scale"],
        zero=arguments["zero"],
        scheme=arguments["scheme"],
        shape=(arguments["offsets"].numel() - 1, arguments["rows"], arguments["columns"]),
    )


def _in_order(weight: StackedWeight, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "x": arguments["x"],
        "offsets": arguments["offsets"],
        "codes": weight.codes,
        "scale": weight.scale,
        "zero": weight.zero,
        **{name: arguments[name] for name in ("bias", "row_weight", "x_scale")},
        "scheme": weight.scheme,
        "rows": weight.shape[1],
        "columns": weight.shape[2],
        "activation": arguments["activation"],
        "out_dtype": arguments["out_dtype"],
    }


def sizes_of(x: Tensor, offsets: Tensor, rows: int, columns: int) -> dict[str, int]:
    """The axes of a call by name."""
    return {"T": x.shape[0], "E": offsets.numel() - 1, "N": rows, "K": columns}


def describe(arguments: Mapping[str, Any]) -> Workload:
    """The workload that prepared arguments are; its layout is no part of it."""
    x, rows, columns = arguments["x"], arguments["rows"], arguments["columns"]
    return Workload(
        name="call",
        sizes=sizes_of(x, arguments["offsets"], rows, columns),
        dtype=x.dtype,
        options={
            "scheme": arguments["scheme"],
            "activation": arguments["activation"],
            "layout": layout_name(arguments["codes"]),
        },
    )
