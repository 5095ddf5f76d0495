"""tercet kernel tune OP."""

from typing import Annotated

import typer
from rich.table import Table

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
from tercet.cli.show import Json, console, print_json
from tercet.errors import UnsupportedError
from tercet.harness.tune.run import SECONDS_PER_SHAPE, TunedShape, TuneReport, tune
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.contract import Op
from tercet.ops.discover import find
from tercet.records import Outcome


def tune_command(
    op: OpName,
    implementation: Annotated[
        str | None,
        typer.Option(
            help="Implementation to tune. Default: the first that declares a search space."
        ),
    ] = None,
    shape: Shapes = None,
    model: Models = None,
    tensor_parallel: TensorParallel = 1,
    tokens: Tokens = None,
    dtype: GivenDtype = None,
    option: Options = None,
    direction: Directions = None,
    device: Device = None,
    seed: Seed = None,
    seconds: Annotated[
        float,
        typer.Option(help="Approximate search time per shape and direction, in seconds."),
    ] = SECONDS_PER_SHAPE,
    write: Annotated[
        bool,
        typer.Option("--write/--no-write", help="Write the result to the op's tuned/DEVICE.json."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Search for the fastest correct configuration of a kernel on this device, and save it."""
    found = find(op)
    workloads = select_workloads(
        found, shape, model, dtype=dtype, options=option,
        tensor_parallel=tensor_parallel, tokens=tokens,
    )  # fmt: skip
    report = tune(
        found,
        implementation or _first_with_space(found),
        workloads,
        device=device_or_best(device),
        directions=parse_directions(direction),
        seconds=seconds,
        seed=seed,
        write=write,
    )
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        _show(report)


def _first_with_space(op: Op) -> str:
    for implementation in op.implementations:
        if implementation.space or implementation.gradient_space:
            return implementation.name
    raise UnsupportedError(
        f"op {op.name!r} has nothing to tune: no implementation declares a `space`"
    )


def _show(report: TuneReport) -> None:
    table = Table(title=f"{report.op} {report.implementation} on {report.device}")
    for column in ("workload", "direction", "best", "us", "default us", "tried", "wrong", "failed"):
        table.add_column(column)
    for shape in report.shapes:
        outcomes = [trial.outcome for trial in shape.trials]
        table.add_row(
            shape.workload,
            shape.direction,
            _best(shape),
            f"{shape.time_us:.2f}" if shape.time_us is not None else "",
            f"{shape.default_us:.2f}" if shape.default_us is not None else "",
            str(len(outcomes)),
            str(outcomes.count(Outcome.WRONG)),
            str(outcomes.count(Outcome.FAILED)),
        )
    console.print(table)
    console.print(
        f"seed {report.seed}; " + (f"wrote {report.path}" if report.path else "no change")
    )


def _best(shape: TunedShape) -> str:
    if shape.configuration is None:
        return "none is right"
    if not shape.better:
        return "the default"
    return " ".join(f"{name}={value}" for name, value in shape.configuration.items())
