"""tercet sensitivity MODEL --formats FORMAT,FORMAT,..."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tercet.cli.options.calibration import Calibration, Length
from tercet.cli.options.default_output import default_output
from tercet.cli.options.device import Device
from tercet.cli.options.source_model import SourceModel
from tercet.cli.pace import follow
from tercet.cli.show import Json, console, print_json, say
from tercet.compress.allocate.costs import rank_correlation
from tercet.compress.allocate.measure import Scope, measure_sensitivity
from tercet.compress.allocate.rows import Windows
from tercet.compress.allocate.sensitivity_file import Sensitivity
from tercet.compress.plan import load_plan, set_calibration
from tercet.errors import PlanError

_SAMPLE = 24


def sensitivity_command(
    model: SourceModel,
    formats: Annotated[
        str,
        typer.Option(
            help="Number formats that modules may get, with commas: ternary-g64,int3-g64,int4-g64."
        ),
    ],
    plan: Annotated[
        str,
        typer.Option(
            help="Plan whose algorithms, options and calibration are used, and whose formats the "
            "embedding and the head have: a shipped plan, a format or a file."
        ),
    ] = "int4",
    in_context: Annotated[
        bool,
        typer.Option(
            "--in-context",
            help="Measure each module while all others are as the plan has them; otherwise they "
            "are uncompressed.",
        ),
    ] = False,
    embedding: Annotated[
        bool, typer.Option("--embedding", help="Also measure the formats for the embedding.")
    ] = False,
    head: Annotated[
        bool, typer.Option("--head", help="Also measure the formats for an untied head.")
    ] = False,
    proxy: Annotated[
        bool,
        typer.Option(
            "--proxy",
            help="Measure the second-order proxy for all, and KL divergence for a sample only.",
        ),
    ] = False,
    sample: Annotated[
        int,
        typer.Option(help="With --proxy, how many divergences to measure; 0 for none.", min=0),
    ] = _SAMPLE,
    calibration: Calibration = None,
    sequences: Annotated[
        int | None, typer.Option(help="Calibration sequences. Default: the plan's.")
    ] = None,
    length: Length = None,
    windows: Annotated[
        int, typer.Option(help="Windows of the text that divergence is measured on.")
    ] = Windows.count,
    window_length: Annotated[int, typer.Option(help="Tokens of a window.")] = Windows.length,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file (JSON lines). Default: MODEL.sensitivity.jsonl."),
    ] = None,
    device: Device = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the output file if it exists.")] = False,
    resume: Annotated[
        bool, typer.Option(help="Continue an interrupted run; what is measured stays.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure how much each number format hurts each module of a model."""
    if proxy and in_context:
        raise PlanError(
            "--proxy estimates damage to the uncompressed model: leave out --in-context"
        )
    scope = Scope(
        formats=tuple(word.strip() for word in formats.split(",") if word.strip()),
        embedding=embedding,
        head=head,
        in_context=in_context,
        divergences=sample if proxy else None,
    )
    target = out or default_output(model, ".sensitivity.jsonl")
    with follow(as_json) as tell:
        found = measure_sensitivity(
            model,
            scope,
            target,
            plan=set_calibration(load_plan(plan), sequences=sequences, length=length),
            calibration=calibration,
            windows=Windows(count=windows, length=window_length),
            device=device,
            overwrite=overwrite,
            resume=resume,
            progress=tell,
        )
    _show(target, found, as_json)


def _show(target: Path, found: Sensitivity, as_json: bool) -> None:
    correlation = rank_correlation(found)
    if as_json:
        print_json(
            {
                "file": str(target),
                "measurements": len(found.lines),
                "context_kl_nats": found.context_kl_nats,
                "spearman": None if correlation is None else correlation[0],
                "spearman_pairs": 0 if correlation is None else correlation[1],
            }
        )
        return
    console.print(_table(found))
    if correlation is not None:
        console.print(
            f"proxy and divergence: Spearman's rank correlation {correlation[0]:.3f} over "
            f"{correlation[1]} pairs"
        )
    say(f"{target}: {len(found.lines)} measurements; next: tercet allocate {target} --bits 3.0")


def _table(found: Sensitivity) -> Table:
    """By format: what all modules together add, and the module that adds most."""
    context = found.context_kl_nats or 0.0
    table = Table(title=f"{found.identity.source.reference}: KL divergence by format, nats")
    table.add_column("format")
    for name in ("modules", "sum", "sum of proxies"):
        table.add_column(name, justify="right")
    table.add_column("most by")
    for form in dict.fromkeys(form for _, form in found.lines):
        lines = [line for line in found.lines.values() if line.format == form]
        known = [line for line in lines if line.kl_nats is not None]
        worst = max(known, key=lambda line: line.kl_nats or 0.0, default=None)
        total = sum((line.kl_nats or 0.0) - context for line in known)
        table.add_row(
            form,
            str(len(lines)),
            f"{total:.4f}" if len(known) == len(lines) else f"{len(known)} known",
            f"{sum(line.proxy_nats or 0.0 for line in lines):.4f}",
            "-" if worst is None else f"{worst.module} {(worst.kl_nats or 0) - context:.4f}",
        )
    return table
