"""tercet distill TEACHER --to FORMAT --data ... --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.options import training as option
from tercet.cli.show import Json
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.training.setting_overrides import build_settings, parse_overrides
from tercet.compress.training.settings import TrainingSettings
from tercet.workflows.training.from_source import distill

_MODELS = (TrainingSettings, DistillSettings)


def distill_command(
    teacher: option.Teacher,
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
        typer.Option("--set", help=option.set_help(_MODELS)),
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the teacher's cached predictions (with --set top_k=K); runs on the "
            "same data reuse them. Default: inside the run's own state."
        ),
    ] = None,
    device: option.Device = None,
    tensorboard: option.Tensorboard = False,
    overwrite: option.Overwrite = False,
    resume: option.Resume = False,
    as_json: Json = False,
) -> None:
    """Distill a model into a quantized copy of itself and write a packed checkpoint.

    The uncompressed model is the teacher; the student starts from the teacher's weights.
    """
    chosen_settings = parse_overrides(words or [], _MODELS) | option.drop_unset(
        steps=steps, sequences=sequences, length=length, learning_rate=learning_rate
    )
    with option.run_live(as_json) as progress:
        result = distill(
            teacher,
            option.choose_plan(to, plan),
            out,
            data=data,
            settings=build_settings(TrainingSettings, chosen_settings),
            losses=build_settings(DistillSettings, chosen_settings),
            targets=targets,
            device=device,
            tensorboard=tensorboard,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
        )
    option.show(result, as_json)
