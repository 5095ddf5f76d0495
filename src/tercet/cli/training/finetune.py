"""tercet finetune DIR --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.options.calibration import Calibration
from tercet.cli.options.device import Device
from tercet.cli.pace import follow
from tercet.cli.show import Json, console, mebibytes, print_json, print_size
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.training.setting_overrides import build_settings, parse_overrides
from tercet.workflows.inspection import inspect
from tercet.workflows.training.finetune import LENGTH, SEQUENCES, FineTuned, finetune


def finetune_command(
    directory: Annotated[Path, typer.Argument(help="Packed checkpoint.")],
    out: Annotated[Path, typer.Option("--out", help="Output directory.")],
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Uncompressed model. Default: the one that the checkpoint was made from."
        ),
    ] = None,
    calibration: Calibration = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="Much text in the place of --calibration (may be repeated): a text file, a .jsonl "
            "file, a .safetensors file with input_ids, hf:DATASET, or teacher:TOKENS to have the "
            "teacher write that many tokens.",
        ),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Sequences to train on. Default: {SEQUENCES}, or all of --data.",
        ),
    ] = None,
    length: Annotated[int, typer.Option(min=8, help="Tokens of each.")] = LENGTH,
    words: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set how it is trained as KEY=VALUE (may be repeated). Keys: "
            f"{', '.join(FineTuning.model_fields)}. levels=false trains scales and norms alone, "
            "in less memory.",
        ),
    ] = None,
    device: Device = None,
    overwrite: Annotated[
        bool, typer.Option(help="Replace the checkpoint at the output directory if there is one.")
    ] = False,
    resume: Annotated[
        bool, typer.Option(help="Continue an interrupted run after its last measurement.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a packed checkpoint as a whole for its teacher's predictions, in the same formats.

    The last step of quality after `tercet compress --blockwise`: minutes on a GPU for a model of
    some hundred million weights.
    """
    settings = build_settings(FineTuning, parse_overrides(words or [], (FineTuning,)))
    with follow(as_json) as progress:
        result = finetune(
            directory,
            out,
            teacher=teacher,
            calibration=calibration,
            data=data or (),
            sequences=sequences,
            length=length,
            settings=settings,
            device=device,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
        )
    show_finetuned(result, as_json)


def show_finetuned(result: FineTuned, as_json: bool) -> None:
    """Print the checkpoint's size, and how far it was from its teacher before and is now."""
    size = inspect(result.directory)["size"]
    if as_json:
        print_json(
            {
                "directory": str(result.directory),
                "size": size,
                "kl_nats_before": result.before,
                "kl_nats_after": result.after,
                "device_peak_bytes": result.device_peak_bytes,
            }
        )
        return
    print_size(result.directory, size)
    console.print(
        f"KL divergence from the teacher on held-out sequences: {result.before:.4f} nats a token "
        f"before, {result.after:.4f} after",
        soft_wrap=True,
    )
    if result.device_peak_bytes:
        console.print(f"peak memory {mebibytes(result.device_peak_bytes)} of the GPU")
