"""tercet bench DIR."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tercet.checkpoints.sources.fetch import find_packed
from tercet.cli.lazy import importing
from tercet.cli.options.device import Device
from tercet.cli.show import Json, console, print_json, say

if TYPE_CHECKING:
    from tercet.workflows.bench import BenchReport, Range

# a load average above it, of each core, disturbs what is measured
_BUSY = 0.25


def bench_command(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory of a packed checkpoint, or the name of one that `tercet fetch` knows."
        ),
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Also export it and time the target's own engine, on a CPU: gguf (llama.cpp), "
            "onnx (ONNX Runtime) or openvino. May be given several times."
        ),
    ] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each engine.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each engine. Default: as torch takes.")
    ] = None,
    device: Device = None,
    record: Annotated[
        Path | None, typer.Option(help="Append what was measured to this file (JSON lines).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time a packed checkpoint, and other engines on the same weights, taking turns."""
    with importing():
        from tercet.records import append, check_appendable
        from tercet.workflows.bench import bench, to_records

    if record is not None:
        check_appendable(record)
    report = bench(
        find_packed(directory, say, demand=True),
        against or (),
        prompt=prompt,
        tokens=tokens,
        rounds=rounds,
        threads=threads,
        device=device,
        say=say,
    )
    if as_json:
        print_json(report.model_dump())
    else:
        _show(report)
    if record is not None:
        append(record, to_records(report))
    if report.load_before > _BUSY * report.threads:
        say(
            f"the machine was busy (load average {report.load_before:.1f}): measure again when "
            f"it is not"
        )
    if all(engine.reason is not None for engine in report.engines):
        raise typer.Exit(1)


def _show(report: "BenchReport") -> None:
    from rich.table import Table

    table = Table(
        title=f"{report.directory}: {report.format}, prompt {report.prompt}, {report.tokens} "
        f"tokens, {report.threads} threads, {report.device}",
        caption=f"median, least and most of {report.rounds}",
    )
    for column in ("engine", "held as", "MB", "load, s", "prompt, tokens/s", "tokens/s", "peak MB"):
        table.add_column(column)
    for engine in report.engines:
        if engine.reason is not None:
            continue
        table.add_row(
            engine.engine,
            engine.kind or report.format,
            _megabytes(engine.size_bytes),
            _range(engine.load_s, 2),
            _range(engine.prompt_tokens_per_s, 0),
            _range(engine.decode_tokens_per_s, 1),
            _megabytes(engine.peak_resident_bytes),
        )
    console.print(table)
    for engine in report.engines:
        if engine.reason is not None:
            console.print(f"{engine.engine}: not measured: {engine.reason}", soft_wrap=True)


def _range(found: "Range | None", digits: int) -> str:
    if found is None:
        return "-"
    median, low, high = (f"{each:.{digits}f}" for each in (found.median, found.low, found.high))
    return median if low == high else f"{median} ({low} to {high})"


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.0f}"
