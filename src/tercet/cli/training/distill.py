"""tercet distill TEACHER (--to FORMAT | --recipe NAME) --data ... --out DIR."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.cli.options import training as option
from tercet.cli.pace import follow
from tercet.cli.show import Json
from tercet.cli.training.finetune import show_finetuned
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.training.setting_overrides import build_settings
from tercet.compress.training.settings import TrainingSettings
from tercet.errors import PlanError
from tercet.recipes.catalog import RECIPES, find_recipe
from tercet.workflows.training.from_source import distill
from tercet.workflows.training.recipe import distill_by_recipe

_MODELS = (TrainingSettings, DistillSettings)


def distill_command(
    teacher: option.Teacher,
    data: option.Data,
    out: option.Out,
    to: option.To = None,
    plan: option.PlanFile = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="How a published model was made, instead of --to, --plan and all settings: "
            f"{', '.join(RECIPES)}."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="With --recipe: calibration text for its first stage. Default: the text that "
            "ships with tercet."
        ),
    ] = None,
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
    if recipe is not None:
        others = (to, plan, steps, sequences, length, learning_rate, words, targets)
        if tensorboard or any(one is not None for one in others):
            raise PlanError(
                "--recipe says how it is done: leave out --to, --plan, --steps, --sequences, "
                "--length, --learning-rate, --set, --targets and --tensorboard"
            )
        found = find_recipe(recipe)
        with follow(as_json) as progress:
            made = distill_by_recipe(
                teacher,
                found,
                out,
                data=data,
                calibration=calibration,
                device=device,
                overwrite=overwrite,
                resume=resume,
                progress=progress,
            )
        show_finetuned(made, as_json)
        return
    if calibration is not None:
        raise PlanError("--calibration is for --recipe: a training without one reads --data alone")
    chosen_settings = option.choose_settings(
        words, _MODELS, steps, sequences, length, learning_rate
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
