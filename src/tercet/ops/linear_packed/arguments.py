"""What linear_packed takes: its arguments checked, prepared, described and counted."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet import environment
from tercet.errors import UnsupportedError
from tercet.kernel import packed_call
from tercet.kernel.contract import Cost, Workload
from tercet.kernel.one_device import on_one_device
from tercet.kernel.packed_call import FLOATS, check_activation, check_given, chosen
from tercet.kernel.prepared import layout_name, prepare

_OP = "linear_packed"
# of weights, that kernels turn into 16-bit floats
FLOAT_ELEMENTS = ("fp8_e4m3", "fp8_e5m2")


def check(
    x: Tensor,
    codes: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    x_scale: Tensor | None,
    x_sum: Tensor | None,
    rows: int,
    columns: int,
    activation: str,
    out_dtype: torch.dtype,
) -> None:
    """UnsupportedError for what does not fit, in words."""
    if x.dim() == 0 or x.shape[-1] != columns:
        raise UnsupportedError(
            f"linear_packed: x has shape {list(x.shape)}, the weight is [{rows}, {columns}]: "
            f"the last axis of x must be {columns}"
        )
    check_activation(_OP, x, x_scale, activation, out_dtype)
    check_given(_OP, "x_scale", x_scale, x.shape[:-1], (torch.float32,))
    check_given(_OP, "x_sum", x_sum, x.shape[:-1], (torch.float32, torch.int32))
    check_given(_OP, "bias", bias, (rows,), FLOATS)
    check_given(_OP, "residual", residual, (*x.shape[:-1], rows), (out_dtype,))
    others = {"x_scale": x_scale, "x_sum": x_sum, "bias": bias, "residual": residual}
    on_one_device(_OP, "x", x, **{"the weight": codes, **others})


def prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A case's arguments, with the weight in the layout of x's device, in the op's order."""
    x = arguments["x"]
    activation, out_dtype = chosen(x, arguments["activation"], arguments["out_dtype"])
    weight = prepare(arguments["weight"], x.device)
    given = ("bias", "residual", "x_scale", "x_sum")
    return {
        "x": x,
        "codes": weight.codes,
        "scale": weight.scale,
        "zero": weight.zero,
        **{name: arguments[name] for name in given},
        "scheme": weight.scheme,
        "rows": weight.shape[0],
        "columns": weight.shape[1],
        "activation": activation,
        "out_dtype": out_dtype,
    }


def traits(options: Mapping[str, Any]) -> dict[str, Any]:
    """As of every packed call, and TERCET_FP8_SUMS, as the environment has it."""
    return {**packed_call.traits(options), "TERCET_FP8_SUMS": environment.fp8_sums()}


def describe(arguments: Mapping[str, Any]) -> Workload:
    """The workload that prepared arguments are; its layout is no part of it."""
    x, rows, columns = arguments["x"], arguments["rows"], arguments["columns"]
    return Workload(
        name="call",
        sizes={"M": x.shape[:-1].numel(), "N": rows, "K": columns},
        dtype=x.dtype,
        options={
            "scheme": arguments["scheme"],
            "activation": arguments["activation"],
            "layout": layout_name(arguments["codes"]),
            "out": str(arguments["out_dtype"])[6:],
        },
    )


def cost(arguments: Mapping[str, Any]) -> Cost:
    """2 M N K operations; every tensor read once, y written once."""
    x, rows, columns = arguments["x"], arguments["rows"], arguments["columns"]
    m = x.shape[:-1].numel()
    read = [value for value in arguments.values() if isinstance(value, Tensor)]
    return Cost(
        flops=2 * m * rows * columns,
        bytes_read=sum(part.numel() * part.element_size() for part in read),
        bytes_written=m * rows * arguments["out_dtype"].itemsize,
    )
