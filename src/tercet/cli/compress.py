"""tercet compress MODEL --to FORMAT --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.options.calibration import Calibration, Length
from tercet.cli.options.default_output import default_output
from tercet.cli.options.device import Device
from tercet.cli.options.source_model import SourceModel
from tercet.cli.pace import follow
from tercet.cli.show import Json, console, mebibytes, print_json, print_size, say
from tercet.compress.memory import Estimate
from tercet.compress.pipeline import Compressed, Progress, compress
from tercet.compress.plan import load_plan, set_calibration, train_blockwise
from tercet.errors import PlanError
from tercet.workflows.inspection import inspect

_SHOWN = 5  # names of weights in a message


def compress_command(
    model: SourceModel,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Shipped plan or number format, such as ternary or int3-g128."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Path of a compression plan (YAML).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Output directory. Default: MODEL-FORMAT.")
    ] = None,
    calibration: Calibration = None,
    effort: Annotated[
        str,
        typer.Option(
            help="How much calibration data: fast (16 sequences), default (the plan's number) or "
            "best (256)."
        ),
    ] = "default",
    blockwise: Annotated[
        bool,
        typer.Option(
            "--blockwise",
            help="Also train each layer's weights together for the layer's output: the best "
            "quality, above all at 3 bits and less. Takes minutes on a GPU, hours on a CPU; 128 "
            "calibration sequences, if nothing else is said.",
        ),
    ] = False,
    sequences: Annotated[
        int | None, typer.Option(help="Calibration sequences. Default: as --effort says.")
    ] = None,
    length: Length = None,
    device: Device = None,
    overwrite: Annotated[
        bool, typer.Option(help="Replace the checkpoint at the output directory if there is one.")
    ] = False,
    resume: Annotated[
        bool, typer.Option(help="Continue an interrupted run after its last finished layer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Quantize a model's weights and write them as a packed checkpoint."""
    if (to is None) == (plan is None):
        raise PlanError("give either --to FORMAT or --plan FILE")
    target = out or default_output(model, f"-{to or Path(str(plan)).stem}")
    loaded = load_plan(plan if plan is not None else str(to))
    chosen = set_calibration(
        train_blockwise(loaded) if blockwise else loaded,
        effort=effort,
        sequences=sequences,
        length=length,
    )
    with follow(as_json) as unit:
        result = compress(
            model,
            chosen,
            target,
            calibration=calibration,
            device=device,
            overwrite=overwrite,
            resume=resume,
            # plans that ship name modules of several architectures: some always match nothing
            progress=Progress(
                planned=_announce,
                unused=_say_unused,
                idle=_warn if plan is not None else _silent,
                unit=unit,
            ),
        )
    _show(result, as_json)


def _show(result: Compressed, as_json: bool) -> None:
    size = inspect(result.directory)["size"]
    if as_json:
        print_json(
            {
                "directory": str(result.directory),
                "size": size,
                "unmatched": result.unmatched,
                "unused": result.unused,
                "idle_rules": result.idle,
                "estimate_bytes": result.estimate.total_bytes,
                "peak_bytes": result.peak_bytes,
                "device_peak_bytes": result.device_peak_bytes,
            }
        )
        return
    print_size(result.directory, size)
    on_gpu = result.device_peak_bytes
    console.print(
        f"peak memory {mebibytes(result.peak_bytes)} "
        + (f"and {mebibytes(on_gpu)} of the GPU " if on_gpu else "")
        + f"(estimated {mebibytes(result.estimate.total_bytes)})",
        soft_wrap=True,
    )


def _announce(estimate: Estimate, unmatched: list[str]) -> None:
    work = (
        "the work is done in the GPU's"
        if estimate.on_gpu
        else f"weights in work {mebibytes(estimate.unit_bytes)}, "
        f"activations {mebibytes(estimate.activation_bytes)}, "
        f"statistics {mebibytes(estimate.statistics_bytes)}"
    )
    say(
        f"memory estimate {mebibytes(estimate.total_bytes)}: process "
        f"{mebibytes(estimate.process_bytes)}, source weights "
        f"{mebibytes(estimate.source_bytes)}, {work}"
    )
    if unmatched:
        say(f"no rule matches, kept as they are: {', '.join(unmatched)}")


def _say_unused(kind: str, unused: list[str]) -> None:
    shown = ", ".join(unused[:_SHOWN]) + (" ..." if len(unused) > _SHOWN else "")
    say(f"not in the checkpoint, since {kind} does not use them: {len(unused)} weights: {shown}")


def _warn(idle: list[str]) -> None:
    say(f"rules that match nothing (or nothing that an earlier rule leaves): {', '.join(idle)}")


def _silent(_: list[str]) -> None:
    return None
