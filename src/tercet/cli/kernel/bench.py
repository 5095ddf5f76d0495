"""tercet kernel bench OP."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tercet.cli.kernel.calls import (
    Directions,
    GivenDtype,
    Models,
    Shapes,
    TensorParallel,
    Tokens,
    parse_directions,
    select_workloads,
)
from tercet.cli.options.op import Device, OpName, Options, Seed
from tercet.cli.show import Json, console, print_json, say
from tercet.harness.bench.run import CACHES, LAUNCHES, SECONDS_PER_ROW, BenchReport, bench
from tercet.harness.bench.variant import Cache, Launch
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.workloads.arguments import device_or_best
from tercet.ops.discover import find, names
from tercet.records import Outcome, Record, append

_COLUMNS = ("timing", "variant", "us", "+-", "rate", "roofline", "eager")
_ORDER = ("forward", "backward", "graph", "eager", "cold", "warm")
_OTHER_FAULTS = 8
_SHARED_CLOCK = (
    "Power or heat held the GPU's clock down while variants were timed in turn, so that all shared "
    "a clock; --settle 0.25 times each at its own."
)


def bench_command(
    op: OpName,
    shape: Shapes = None,
    model: Models = None,
    tensor_parallel: TensorParallel = 1,
    tokens: Tokens = None,
    dtype: GivenDtype = None,
    option: Options = None,
    implementation: Annotated[
        list[str] | None,
        typer.Option(help="Time only this implementation (may be repeated). Default: all."),
    ] = None,
    candidate: Annotated[
        Path | None,
        typer.Option(
            help="Also time this Python file, which defines forward() and optionally gradient()."
        ),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines", help="Also time the baselines: torch, other libraries."
        ),
    ] = True,
    direction: Directions = None,
    cache: Annotated[
        Cache | None, typer.Option(help="Time with a cold or a warm L2 cache only. Default: both.")
    ] = None,
    launch: Annotated[
        Launch | None,
        typer.Option(help="Time in a CUDA graph or as eager calls only. Default: both."),
    ] = None,
    device: Device = None,
    seed: Seed = None,
    seconds: Annotated[
        float, typer.Option(help="Time limit for one row of the table, in seconds.")
    ] = SECONDS_PER_ROW,
    settle: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Run each variant by itself for this many seconds before timing it, so that the "
            "GPU's clock settles at what that variant's power draw allows; 0.25 is enough. "
            "Default 0: interleave all variants, so that all share one clock.",
        ),
    ] = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Append the records to this JSON-lines file, workload by workload."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time an op and its baselines, and compare them with this machine's measured roofline."""
    found = find(op)
    workloads = select_workloads(
        found, shape, model, dtype=dtype, options=option,
        tensor_parallel=tensor_parallel, tokens=tokens,
    )  # fmt: skip
    report = bench(
        found,
        workloads,
        implementations=implementation,
        baselines=baselines,
        directions=parse_directions(direction),
        caches=(cache,) if cache else CACHES,
        launches=(launch,) if launch else LAUNCHES,
        device=device_or_best(device),
        seed=seed,
        seconds_per_row=seconds,
        settle_seconds=settle,
        candidate=candidate_from(candidate) if candidate is not None else None,
        location=None if op in names() else op,
        keep=partial(append, out) if out is not None else None,
    )
    if out is not None:
        say(f"{len(report.records)} records appended to {out}")
    passed = report.passed and report.timed
    if as_json:
        print_json({**report.model_dump(mode="json"), "passed": passed})
    else:
        _show(report)
    if not passed:
        raise typer.Exit(1)


def _show(report: BenchReport) -> None:
    copy = report.ceilings.copy_bytes_per_second
    console.print(
        f"{report.op} on {report.ceilings.device}, seed {report.seed}; a copy reaches "
        f"{copy / 1e9:.4g} GB/s",
        soft_wrap=True,
    )
    calls = dict.fromkeys(_call(record) for record in report.records)
    for call in calls:
        rows = [record for record in report.records if _call(record) == call]
        if any(record.outcome is Outcome.OK for record in rows):
            console.print(_table(call, rows))
    for guarantee in report.not_guaranteed:
        console.print(Text.assemble(("not guaranteed:", "yellow"), f" {guarantee}"))
    if any(_shared_low_clock(record) for record in report.records):
        console.print(_SHARED_CLOCK, soft_wrap=True)
    for record in report.records:
        if record.outcome is not Outcome.OK:
            name, way = record.settings["variant"], record.settings["direction"]
            line = f"{name} {way} ({_call(record)}): {record.outcome}: {record.reason}"
            console.print(line, soft_wrap=True, highlight=False)
    for fault in report.faults[:_OTHER_FAULTS]:
        line = f"{fault.implementation} {fault.check} on {fault.case}: {fault.message}"
        console.print(line, soft_wrap=True, highlight=False)


def _shared_low_clock(record: Record) -> bool:
    return bool(record.metrics.get("throttled")) and "pace" not in record.settings


def _call(record: Record) -> str:
    sizes, name = str(record.settings["sizes"]), str(record.settings["workload"])
    named = "" if name.replace(",", " ") == sizes else name
    parts = (named, sizes, record.settings["dtype"], record.settings["options"])
    return ", ".join(str(part) for part in parts if part)


def _table(call: str, records: Sequence[Record]) -> Table:
    """Make a table of times: forward first, then graph, then cold cache; fastest variant first.

    Columns: time in us, half-width of the 95 % confidence interval (+-), the fraction of the
    roofline with what limits it, and the speedup over eager torch.
    """
    table = Table(title=call, box=None, pad_edge=False, title_justify="left")
    for column in _COLUMNS:
        left = column in ("timing", "variant")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    timed = [record for record in records if record.outcome is Outcome.OK]
    for timing in sorted({_timing(r) for r in timed}, key=lambda t: [_ORDER.index(w) for w in t]):
        group = [record for record in timed if _timing(record) == timing]
        group.sort(key=lambda record: record.metrics["time_us"])
        eager = [r.metrics["time_us"] for r in group if r.settings["variant"] == "eager"]
        for at, record in enumerate(group):
            m = record.metrics
            table.add_row(
                "" if at else " ".join(timing),
                str(record.settings["variant"]),
                f"{m['time_us']:.2f}",
                f"{(m['time_us_high'] - m['time_us_low']) / 2 / m['time_us']:.1%}",
                _rate(record),
                f"{m['roofline_fraction']:.0%} {record.settings['binds']}",
                f"{eager[0] / m['time_us']:.2f}x" if eager else "",
            )
    return table


def _timing(record: Record) -> tuple[str, ...]:
    return tuple(str(record.settings[name]) for name in ("direction", "launch", "cache"))


def _rate(record: Record) -> str:
    if record.settings["binds"] == "compute":
        return f"{record.metrics['flops_per_second'] / 1e12:.3g} TFLOP/s"
    return f"{record.metrics['bytes_per_second'] / 1e9:.4g} GB/s"
