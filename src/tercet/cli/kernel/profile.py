"""tercet kernel profile OP."""

from typing import Annotated, get_args

import typer
from rich.markup import escape
from rich.table import Table

from tercet.cli.kernel.shape import Device, Dtype, OpName, Options, Shape
from tercet.cli.kernel.shape import parse_workload as workload_of
from tercet.cli.show import Json, console, print_json
from tercet.errors import UnsupportedError
from tercet.harness.ceilings import ceilings
from tercet.harness.given import device_or_best
from tercet.harness.profile import ProfileReport, profile
from tercet.harness.roofline import flops_per_second
from tercet.kernel.select import find
from tercet.kernel.tuned import Direction

_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_SHOWN = 10


def profile_command(
    op: OpName,
    shape: Shape,
    dtype: Dtype = "bfloat16",
    option: Options = None,
    direction: Annotated[str, typer.Option(help="forward or backward.")] = "forward",
    implementation: Annotated[
        str | None, typer.Option(help="Default: the one that selection takes.")
    ] = None,
    device: Device = None,
    no_ncu: Annotated[bool, typer.Option("--no-ncu", help="Without hardware counters.")] = False,
    as_json: Json = False,
) -> None:
    """Show where a call's time goes, in numbers and in words, and what to try next."""
    for known in _DIRECTIONS:
        if direction == known:
            break
    else:
        raise UnsupportedError(f"direction {direction!r}: allowed are forward and backward")
    found, where = find(op), device_or_best(device)
    workload, limits = workload_of(found, shape, dtype, option), ceilings(where)
    report = profile(
        found,
        workload,
        device=where,
        implementation=implementation,
        direction=known,
        with_counters=not no_ncu,
        copy_bytes_per_second=limits.copy_bytes_per_second,
        flops_per_second=flops_per_second(limits, workload.dtype),
    )
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _show(report)


def _show(report: ProfileReport) -> None:
    times = report.timeline
    table = Table(
        title=f"{report.op} {report.direction}, {report.implementation} on {report.device}: "
        f"{report.workload}"
    )
    for column in ("kernel", "launches", "us"):
        table.add_column(column)
    for kernel in times.kernels[:_SHOWN]:
        table.add_row(escape(kernel.name[:80]), f"{kernel.launches:g}", f"{kernel.time_us:.2f}")
    console.print(table)
    console.print(
        f"a call: {times.call_us:.1f} us from one to the next, the device busy for "
        f"{times.device_us:.1f} us, the host for {times.host_us:.1f} us"
    )
    if report.counters_missing is not None:
        console.print(f"no counters: {escape(report.counters_missing)}")
    for advice in report.advice:
        console.print(f"- {escape(str(advice))}", highlight=False, soft_wrap=True)
