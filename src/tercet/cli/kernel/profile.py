"""tercet kernel profile OP."""

from typing import Annotated, get_args

import typer
from rich.table import Table

from tercet.cli.kernel.calls import (
    GivenDtype,
    Models,
    Shapes,
    TensorParallel,
    Tokens,
    select_workloads,
)
from tercet.cli.options.op import Device, OpName, Options
from tercet.cli.show import Json, console, print_json
from tercet.errors import UnsupportedError
from tercet.harness.profile import ProfileReport, profile
from tercet.harness.timing.ceilings import ceilings
from tercet.harness.timing.roofline import flops_per_second
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.tuned import Direction
from tercet.ops.discover import find

_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_SHOWN = 10


def profile_command(
    op: OpName,
    shape: Shapes = None,
    model: Models = None,
    tensor_parallel: TensorParallel = 1,
    tokens: Tokens = None,
    dtype: GivenDtype = None,
    option: Options = None,
    direction: Annotated[
        str, typer.Option(help="Pass to profile: forward or backward.")
    ] = "forward",
    implementation: Annotated[
        str | None,
        typer.Option(help="Implementation to profile. Default: the one that would be selected."),
    ] = None,
    device: Device = None,
    no_ncu: Annotated[
        bool,
        typer.Option("--no-ncu", help="Skip the hardware counters, which need Nsight Compute."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Profile calls one by one: each GPU kernel's time, what limits it, and what to try next."""
    for known in _DIRECTIONS:
        if direction == known:
            break
    else:
        raise UnsupportedError(f"direction {direction!r}: allowed are forward and backward")
    found, where = find(op), device_or_best(device)
    workloads = select_workloads(
        found, shape, model, dtype=dtype, options=option, tensor_parallel=tensor_parallel,
        tokens=tokens,
    )  # fmt: skip
    limits, reports = ceilings(where), list[ProfileReport]()
    for workload in workloads:
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
        reports.append(report)
        if not as_json:
            _show(report)
    if as_json:
        print_json({"reports": [report.model_dump(mode="json") for report in reports]})


def _show(report: ProfileReport) -> None:
    times = report.timeline
    table = Table(
        title=f"{report.op} {report.direction}, {report.implementation} on {report.device}: "
        f"{report.workload}"
    )
    for column in ("kernel", "launches", "us"):
        table.add_column(column)
    for kernel in times.kernels[:_SHOWN]:
        table.add_row(kernel.name[:80], f"{kernel.launches:g}", f"{kernel.time_us:.2f}")
    console.print(table)
    console.print(
        f"a call: {times.call_us:.1f} us from one to the next, the device busy for "
        f"{times.device_us:.1f} us, the host for {times.host_us:.1f} us"
    )
    if report.counters_missing is not None:
        console.print(f"no counters: {report.counters_missing}")
    for advice in report.advice:
        console.print(f"- {advice}", highlight=False, soft_wrap=True)
