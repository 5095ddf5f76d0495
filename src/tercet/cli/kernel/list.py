"""tercet kernel list."""

from rich.table import Table

from tercet.cli.show import Json, console, print_json
from tercet.kernel.contract import Op
from tercet.ops.discover import discover


def list_command(as_json: Json = False) -> None:
    """List all ops with their axes, implementations and number of check cases."""
    ops = discover()
    if as_json:
        print_json([describe(op) for op in ops.values()])
        return
    table = Table(title=f"{len(ops)} ops")
    for column in ("op", "axes", "gradients of", "implementations", "cases"):
        table.add_column(column)
    for op in ops.values():
        table.add_row(
            op.name,
            " ".join(axis.name for axis in op.axes),
            ", ".join(op.differentiable) or "-",
            ", ".join(implementation.name for implementation in op.implementations),
            str(len(op.cases)),
        )
    console.print(table)


def describe(op: Op) -> dict[str, object]:
    """Describe an op as JSON-compatible data."""
    return {
        "name": op.name,
        "axes": {axis.name: axis.meaning for axis in op.axes},
        "tensors": {
            spec.name: {
                "role": spec.role,
                "axes": list(spec.axes),
                "dtypes": [str(dtype)[6:] for dtype in spec.dtypes],
            }
            for spec in op.tensors
        },
        "differentiable": list(op.differentiable),
        "implementations": {
            implementation.name: implementation.language for implementation in op.implementations
        },
        "baselines": [baseline.name for baseline in op.baselines],
        "cases": len(op.cases),
    }
