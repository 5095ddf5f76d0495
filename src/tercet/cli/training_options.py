"""What the commands that train take, and how they show what they did."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from tercet.cli.show import console, mebibytes, print_json
from tercet.compress.training.group import torchrun_rank
from tercet.errors import PlanError
from tercet.recipes.inspection import inspect
from tercet.recipes.training import Trained

Data = Annotated[
    list[str],
    typer.Option(
        "--data", help="Text, .jsonl, .safetensors of input_ids, hf:NAME, teacher:TOKENS."
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Directory to write.")]
To = Annotated[
    str | None, typer.Option("--to", help="A shipped plan or a format: ternary, nonary-a8 ...")
]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="A plan file (YAML).")]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps.")]
Sequences = Annotated[int | None, typer.Option(help="Sequences in a microbatch.")]
Length = Annotated[int | None, typer.Option(help="Tokens in a sequence.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="The highest.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events, too.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what lies at the output.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")]


def names(models: Iterable[type[BaseModel]]) -> str:
    """The settings that `--set` takes."""
    return ", ".join(name for model in models for name in model.model_fields)


def given(**options: Any) -> dict[str, Any]:
    """Those options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def chosen_plan(to: str | None, plan: Path | None) -> str:
    """What `--to` or `--plan` names; PlanError unless it is one of them."""
    if (to is None) == (plan is None):
        raise PlanError("give either --to FORMAT or --plan FILE")
    return to if to is not None else str(plan)


def show(result: Trained, as_json: bool) -> None:
    """The checkpoint's size and the journal's last line, from torchrun's first process only."""
    if torchrun_rank() > 0:
        return
    size = inspect(result.directory)["size"]
    if as_json:
        print_json({"directory": str(result.directory), "size": size, "last": result.last})
        return
    console.print(
        f"{result.directory}: {mebibytes(size['disk_bytes'])}, {size['bits_per_weight']:.2f} bits "
        f"a weight with everything counted, {size['ratio_to_bf16']:.1f} times smaller than bf16",
        soft_wrap=True,
    )
    if result.last is not None:
        console.print(
            f"after {result.last['tokens']:,} tokens the loss was {result.last['loss']:.4f}"
        )
