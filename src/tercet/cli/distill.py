"""tercet distill TEACHER --to FORMAT --data ... --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli import training_options as option
from tercet.cli.show import Json
from tercet.cli.training_live import run_live
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.training.override import parse_words, settings_of
from tercet.compress.training.settings import TrainingSettings
from tercet.recipes.training import distill

_MODELS = (TrainingSettings, DistillSettings)


def distill_command(
    teacher: Annotated[str, typer.Argument(help="Directory, hub name, GGUF file or fetched name.")],
    data: option.Data,
    out: option.Out,
    to: option.To = None,
    plan: option.PlanFile = None,
    steps: option.Steps = None,
    sequences: option.Sequences = None,
    length: option.Length = None,
    learning_rate: option.Rate = None,
    words: Annotated[
        list[str] | None,
        typer.Option("--set", help=f"KEY=VALUE, any of {option.names(_MODELS)}."),
    ] = None,
    targets: Annotated[
        Path | None, typer.Option(help="With top_k: where cached targets lie, to be used again.")
    ] = None,
    device: option.Device = None,
    tensorboard: option.Tensorboard = False,
    overwrite: option.Overwrite = False,
    resume: option.Resume = False,
    as_json: Json = False,
) -> None:
    """Train a quantized copy of a model to do as the model does; the result is packed."""
    given = parse_words(words or [], _MODELS) | option.given(
        steps=steps, sequences=sequences, length=length, learning_rate=learning_rate
    )
    with run_live(as_json) as progress:
        result = distill(
            teacher,
            option.chosen_plan(to, plan),
            out,
            data=data,
            settings=settings_of(TrainingSettings, given),
            losses=settings_of(DistillSettings, given),
            targets=targets,
            device=device,
            tensorboard=tensorboard,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
        )
    option.show(result, as_json)
