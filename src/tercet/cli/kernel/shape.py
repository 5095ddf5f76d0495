"""How a shape, options and an op are given on the command line."""

from typing import Annotated, Any

import typer

from tercet.errors import UnsupportedError
from tercet.harness.given import dtype_of
from tercet.kernel.contract import Op, Workload

OpName = Annotated[str, typer.Argument(help="An op's name, or the path of its folder.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda. Default: cuda where there is a GPU.")
]
Seed = Annotated[int | None, typer.Option(help="Of the inputs. Default: a fresh one, printed.")]
Shape = Annotated[str, typer.Option(help='Sizes of the axes: "M=16384,N=8192".')]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the op: residual=True.")
]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16 or float32.")]


def parse_workload(
    op: Op, shape: str, dtype: str = "bfloat16", options: list[str] | None = None
) -> Workload:
    """A workload from its words. UnsupportedError says which axes the op has."""
    known = [axis.name for axis in op.axes]
    sizes: dict[str, int] = {}
    for part in shape.replace(" ", ",").split(","):
        axis, _, size = part.partition("=")
        if part and (axis not in known or not size.isdecimal()):
            raise UnsupportedError(
                f"shape {shape!r}: {part!r} is no axis of {op.name!r} with its size: write "
                f"{','.join(f'{name}=1024' for name in known)}"
            )
        if part:
            sizes[axis] = int(size)
    chosen = dict(_option(text) for text in options or ())
    return Workload(name=shape, sizes=sizes, dtype=dtype_of(dtype), options=chosen)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UnsupportedError(f"option {text!r}: write name=value, as in residual=True")
    words: dict[str, Any] = {"True": True, "False": False, "None": None}
    if value in words:
        return name, words[value]
    return name, int(value) if value.lstrip("-").isdecimal() else value
