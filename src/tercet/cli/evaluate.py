"""tercet eval DIR ..."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tercet.checkpoints.sources.fetch import find_packed
from tercet.cli.options.device import Device
from tercet.cli.options.kv_cache import KvCacheDtype
from tercet.cli.pace import follow
from tercet.cli.show import Json, console, print_json, say
from tercet.cli.tasks.questions import (
    Chat,
    Limit,
    MaxTokens,
    Out,
    Resume,
    Shots,
    TaskData,
    TaskNames,
    split_names,
)
from tercet.errors import PlanError
from tercet.records import Record, append, check_appendable
from tercet.workflows.evaluation import evaluate
from tercet.workflows.tasks import evaluate_tasks, read_questions

_LENGTH, _WINDOWS = 1024, 16


def evaluate_command(
    directories: Annotated[
        list[Path],
        typer.Argument(
            help="Packed checkpoints of the same model, or names of those that `tercet fetch` "
            "knows; with --tasks also uncompressed models."
        ),
    ],
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Uncompressed model to compare with, or 'none' to skip the comparison. Default: "
            "the model that the checkpoints were made from."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to evaluate on: a UTF-8 text file, or a .jsonl file with a key text. "
            "Default: the text that ships with tercet."
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help=f"Context window in tokens. Default: {_LENGTH}.", min=2)
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(
            help=f"Number of windows to evaluate; 0 for the whole text. Default: {_WINDOWS}.", min=0
        ),
    ] = None,
    tasks: TaskNames = None,
    task_data: TaskData = None,
    limit: Limit = None,
    shots: Shots = None,
    max_tokens: MaxTokens = None,
    chat: Chat = False,
    out: Out = None,
    resume: Resume = False,
    device: Device = None,
    kv_cache_dtype: KvCacheDtype = None,
    record: Annotated[
        Path | None, typer.Option(help="Append the results to this JSON-lines file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure compressed models: perplexity, divergence from the teacher, size; or tasks."""
    directories = [find_packed(one, say) for one in directories]
    if record is not None:
        check_appendable(record)
    if tasks is None:
        if any((task_data, limit, shots is not None, max_tokens, chat, out, resume)):
            raise PlanError(
                "--task-data, --limit, --shots, --max-tokens, --chat, --out and --resume are about "
                "tasks: name some with --tasks"
            )
        with follow(as_json, "opening the models") as tell:
            records = evaluate(
                list(directories),
                teacher=teacher,
                text=text,
                length=_LENGTH if length is None else length,
                count=(_WINDOWS if windows is None else windows) or None,
                device=device,
                kv_cache_dtype=kv_cache_dtype,
                progress=lambda done, total: tell(done, total, "windows"),
            )
    else:
        if any(each is not None for each in (teacher, text, length, windows)):
            raise PlanError(
                "--teacher, --text, --length and --windows are about perplexity: leave them out "
                "with --tasks; `tercet compare` and `tercet gate` set two models side by side"
            )
        if resume and out is None:
            raise PlanError("--resume goes on with the answers in a folder: name it with --out")
        if out is not None and len(directories) > 1:
            raise PlanError("--out keeps the answers of one model: give one, or leave --out out")
        questions = read_questions(
            split_names(tasks),
            data=task_data,
            limit=limit,
            shots=shots,
            max_tokens=max_tokens,
            chat=chat,
        )
        with follow(as_json, "opening the model") as tell:
            records = [
                one
                for model in directories
                for one in evaluate_tasks(
                    str(model),
                    questions,
                    out=out,
                    resume=resume,
                    device=device,
                    kv_cache_dtype=kv_cache_dtype,
                    progress=tell,
                )
            ]
    if as_json:
        print_json([one.model_dump(mode="json") for one in records])
    elif tasks is None:
        console.print(_table(records))
    else:
        console.print(_task_table(records))
        _warn(records)
    if record is not None:
        append(record, records)


def _task_table(records: list[Record]) -> Table:
    table = Table(title=f"tasks, lm-evaluation-harness {records[0].settings['harness']}")
    for name in ("model", "task", "metric"):
        table.add_column(name)
    for name in ("questions", "shots", "score", "95 % interval", "chance", "minutes"):
        table.add_column(name, justify="right")
    for one in records:
        low, high = one.metrics["score_low"], one.metrics["score_high"]
        table.add_row(
            one.subject,
            str(one.settings["task"]),
            str(one.settings["metric"]),
            f"{one.metrics['questions']:.0f}",
            str(one.settings["shots"]),
            f"{one.metrics['score']:.1%}",
            f"{low:.1%} to {high:.1%}",
            f"{one.metrics['score_chance']:.1%}" if "score_chance" in one.metrics else "-",
            f"{one.metrics['seconds'] / 60:.1f}",
        )
    return table


def _warn(records: list[Record]) -> None:
    for one in records:
        if cut := one.settings["truncated_prompts"]:
            say(
                f"{one.settings['task']}: {cut} prompts of {one.subject} were longer than the "
                f"model takes and lost their beginning"
            )
        if lacks := one.settings["sandbox_lacks"]:
            say(f"{one.settings['task']}: answers were run, and here: {lacks}")


def _table(records: list[Record]) -> Table:
    settings = records[0].settings
    table = Table(
        title=f"{settings['text']}, {settings['windows']} windows of {settings['window_tokens']} "
        f"tokens, stride {settings['stride_tokens']}, teacher {settings['teacher']}"
    )
    columns = {
        "perplexity": "{:.2f}",
        "kl_nats": "{:.3f}",
        "top1_agreement": "{:.1%}",
        "bits_per_weight": "{:.2f}",
        "ratio_to_bf16": "{:.1f}x",
        "ratio_to_fp32": "{:.1f}x",
    }
    table.add_column("model")
    for name in columns:
        table.add_column(name, justify="right")
    for one in records:
        cells = [
            form.format(one.metrics[name]) if name in one.metrics else "-"
            for name, form in columns.items()
        ]
        table.add_row(one.subject, *cells)
    return table
