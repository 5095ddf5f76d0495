"""Options of commands that ask tasks: which, from where, how many."""

from pathlib import Path
from typing import Annotated

import typer

from tercet.errors import PlanError

TaskNames = Annotated[
    str | None,
    typer.Option(
        "--tasks",
        help="Tasks of lm-evaluation-harness, separated by commas, such as arc_easy,piqa. "
        "Needs pip install 'tercet[tasks]'.",
    ),
]
TaskData = Annotated[
    Path | None,
    typer.Option(help="Folder with the tasks' data files. Default: they come from the hub."),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Questions of each task (MMLU: of each subject). Default: all.", min=1),
]
Shots = Annotated[
    int | None,
    typer.Option(help="Examples before each question. Default: the task's own number.", min=0),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(help="Longest answer in tokens. Default: the task's own number.", min=1),
]
Chat = Annotated[bool, typer.Option("--chat", help="Write prompts by the model's chat template.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to keep every answer in. Default: none.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue the run in --out: tasks that are finished are not asked again."
    ),
]


def split_names(tasks: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in tasks.split(",") if name.strip()]


Confidence = Annotated[float, typer.Option(help="Of intervals and verdicts, such as 0.95.")]


def check_confidence(confidence: float) -> None:
    """PlanError unless it is at least one half and below 1."""
    if not 0.5 <= confidence < 1:
        raise PlanError(f"--confidence {confidence}: must be at least 0.5 and below 1")
