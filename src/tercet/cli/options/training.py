"""Options that `tercet train` and `tercet distill` share, and how both show progress and result."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from tercet.cli.pace import follow
from tercet.cli.show import console, print_json, print_size
from tercet.compress.training.setting_overrides import merge_options, parse_overrides
from tercet.compress.training.settings import TrainingSettings
from tercet.environment import rank
from tercet.errors import PlanError
from tercet.workflows.inspection import inspect
from tercet.workflows.training.from_source import Trained


def _default(name: str) -> str:
    return f"Default: {TrainingSettings.model_fields[name].default}."


Teacher = Annotated[
    str,
    typer.Argument(
        help="Teacher model: a directory, a name on the Hugging Face hub, a GGUF file, or a model "
        "downloaded by tercet fetch."
    ),
]
Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        help="Training data (may be repeated): a text file, a .jsonl file, a .safetensors file "
        "with input_ids (one row of token ids per sequence), hf:DATASET, or teacher:TOKENS to have "
        "the teacher generate that many tokens.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Output directory.")]
To = Annotated[
    str | None,
    typer.Option("--to", help="Shipped plan or number format, such as ternary or nonary-a8."),
]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="Path of a compression plan (YAML).")]
Steps = Annotated[int | None, typer.Option(help=f"Optimizer steps. {_default('steps')}")]
Sequences = Annotated[
    int | None, typer.Option(help=f"Sequences per device in a microbatch. {_default('sequences')}")
]
Length = Annotated[
    int | None, typer.Option(help=f"Sequence length in tokens. {_default('length')}")
]
Rate = Annotated[
    float | None,
    typer.Option("--learning-rate", help=f"Peak learning rate. {_default('learning_rate')}"),
]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda. Default: cuda if a GPU is available, else cpu.")
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the checkpoint at the output directory if there is one."
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run from its last saved state.")
]


def set_help(models: Iterable[type[BaseModel]]) -> str:
    """Return the help text of `--set`, with every setting that it accepts."""
    names = ", ".join(name for model in models for name in model.model_fields)
    return f"Set a training setting as KEY=VALUE (may be repeated). Keys: {names}."


def choose_settings(
    words: list[str] | None,
    models: Iterable[type[BaseModel]],
    steps: int | None,
    sequences: int | None,
    length: int | None,
    learning_rate: float | None,
) -> dict[str, Any]:
    """Return the settings that `--set` and the options name; PlanError for one given both ways."""
    return merge_options(
        parse_overrides(words or [], models),
        steps=steps,
        sequences=sequences,
        length=length,
        learning_rate=learning_rate,
    )


def choose_plan(to: str | None, plan: Path | None) -> str:
    """Return the plan that `--to` or `--plan` names; PlanError unless exactly one is set."""
    if (to is None) == (plan is None):
        raise PlanError("give either --to FORMAT or --plan FILE")
    return to if to is not None else str(plan)


@contextmanager
def run_live(quiet: bool) -> Generator[Callable[[dict[str, Any], int], None]]:
    """Yield a callback (journal line, total steps) that shows how far the run is.

    Under torchrun only the process of rank 0 shows it.
    """
    with follow(quiet or rank() > 0) as tell:

        def update(line: dict[str, Any], steps: int) -> None:
            words = f"loss {line['loss']:.4f} {line['tokens_per_s']:,.0f} tokens/s"
            tell(line["step"], steps, words)

        yield update


def show(result: Trained, as_json: bool) -> None:
    """Print the checkpoint's size and the journal's last line; under torchrun, on rank 0 only."""
    if rank() > 0:
        return
    size = inspect(result.directory)["size"]
    if as_json:
        print_json({"directory": str(result.directory), "size": size, "last": result.last})
        return
    print_size(result.directory, size)
    if result.last is not None:
        console.print(
            f"after {result.last['tokens']:,} tokens the loss was {result.last['loss']:.4f}"
        )
