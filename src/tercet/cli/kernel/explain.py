"""tercet kernel explain OP."""

from dataclasses import asdict

from rich.table import Table

from tercet.cli.kernel.shape import parse_workload
from tercet.cli.options.op import Device, Dtype, OpName, Options, Shape
from tercet.cli.show import Json, console, print_json
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.select import explain
from tercet.ops.discover import find


def explain_command(
    op: OpName,
    shape: Shape = "",
    dtype: Dtype = "bfloat16",
    option: Options = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Show which implementation would run for a shape, and why each other one would not."""
    found = find(op)
    workload = parse_workload(found, shape, dtype, option)
    where = device_or_best(device)
    verdicts = explain(found, where, workload.dtype, workload.sizes, workload.options)
    if as_json:
        print_json([asdict(verdict) for verdict in verdicts])
        return
    table = Table(title=f"{found.name} on {where}, {workload}")
    for column in ("implementation", "verdict", "why"):
        table.add_column(column)
    for verdict in verdicts:
        mark = "runs" if verdict.chosen else "may run" if verdict.allowed else "may not"
        table.add_row(verdict.implementation, mark, verdict.reason)
    console.print(table)
