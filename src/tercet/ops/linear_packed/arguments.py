"""What linear_packed takes: its arguments prepared, described and counted."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tercet import environment
from tercet.kernel.contract import Cost, Workload
from tercet.packed_weight import call as packed_call
from tercet.packed_weight.call import PackedCall, resolve_output
from tercet.packed_weight.weight import name_parts, prepare

# of weights, that kernels turn into 16-bit floats
FLOAT_ELEMENTS = ("fp8_e4m3", "fp8_e5m2")


def prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A case's arguments, with the weight in the layout of x's device, in the op's order."""
    x = arguments["x"]
    activation, out_dtype = resolve_output(x, arguments["activation"], arguments["out_dtype"])
    weight = prepare(arguments["weight"], x.device)
    given = ("bias", "residual", "x_scale", "x_sum")
    return {
        "x": x,
        **name_parts(weight.parts),
        **{name: arguments[name] for name in given},
        "activation": activation,
        "out_dtype": out_dtype,
    }


def traits(options: Mapping[str, Any]) -> dict[str, Any]:
    """As of every packed call, and TERCET_FP8_SUMS, as the environment has it."""
    return {**packed_call.traits(options), "TERCET_FP8_SUMS": environment.fp8_sums()}


def describe(arguments: Mapping[str, Any]) -> Workload:
    """The workload that prepared arguments are."""
    call = PackedCall.from_arguments(*arguments.values())
    return Workload(name="call", sizes=call.sizes, dtype=call.x.dtype, options=call.options)


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
