"""tercet train MODEL --to FORMAT --data ... --out DIR."""

from typing import Annotated

import typer

from tercet.cli.options import training as option
from tercet.cli.options.source_model import SourceModel
from tercet.cli.show import Json
from tercet.compress.training.setting_overrides import build_settings
from tercet.compress.training.settings import TrainingSettings
from tercet.workflows.training.from_source import train

_MODELS = (TrainingSettings,)


def train_command(
    model: SourceModel,
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
    device: option.Device = None,
    tensorboard: option.Tensorboard = False,
    overwrite: option.Overwrite = False,
    resume: option.Resume = False,
    as_json: Json = False,
) -> None:
    """Train a quantized model on text by next-token prediction and write a packed checkpoint."""
    chosen_settings = option.choose_settings(
        words, _MODELS, steps, sequences, length, learning_rate
    )
    with option.run_live(as_json) as progress:
        result = train(
            model,
            option.choose_plan(to, plan),
            out,
            data=data,
            settings=build_settings(TrainingSettings, chosen_settings),
            device=device,
            tensorboard=tensorboard,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
        )
    option.show(result, as_json)
