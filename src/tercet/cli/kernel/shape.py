"""A workload from the values of --shape, --dtype and --option."""

from typing import Any

from tercet.errors import UnsupportedError, unknown_name
from tercet.harness.workloads.arguments import dtype_of
from tercet.harness.workloads.limits import known_options
from tercet.kernel.contract import Op, Workload


def parse_workload(
    op: Op, shape: str, dtype: str = "bfloat16", options: list[str] | None = None
) -> Workload:
    """Parse a workload from option values; UnsupportedError names the op's axes."""
    known = [axis.name for axis in op.axes]
    sizes: dict[str, int] = {}
    for part in shape.replace(" ", ",").split(","):
        axis, _, size = part.partition("=")
        if part and (axis not in known or not size.isdecimal()):
            raise UnsupportedError(
                f"shape {shape!r}: {part!r} is no axis of {op.name!r} with its size: write "
                f"{','.join(f'{name}=1024' for name in known)}"
            )
        if axis in sizes:
            raise UnsupportedError(f"shape {shape!r}: {axis} is given twice")
        if part:
            sizes[axis] = int(size)
    chosen = dict(_option(text) for text in options or ())
    allowed = known_options(op) if chosen else set[str]()
    for name in chosen:
        if name not in allowed:
            raise UnsupportedError(unknown_name(f"option of {op.name}", name, allowed))
    return Workload(name=shape, sizes=sizes, dtype=dtype_of(dtype), options=chosen)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UnsupportedError(f"option {text!r}: write name=value, as in residual=True")
    words: dict[str, Any] = {"True": True, "False": False, "None": None}
    if value in words:
        return name, words[value]
    return name, int(value) if value.lstrip("-").isdecimal() else value
