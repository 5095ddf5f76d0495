"""tercet compare RUN_A RUN_B."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tercet.cli.show import Json, console, print_json
from tercet.cli.tasks.questions import Confidence, TaskNames, check_confidence, split_names
from tercet.evaluate.tasks.catalog import find_tasks
from tercet.evaluate.tasks.compare import Comparison, compare_runs
from tercet.evaluate.tasks.samples import read_settings


def compare_command(
    first: Annotated[
        Path, typer.Argument(help="Folder of a run, from `tercet eval --tasks ... --out FOLDER`.")
    ],
    second: Annotated[Path, typer.Argument(help="Folder of the run to compare with it.")],
    tasks: TaskNames = None,
    confidence: Confidence = 0.95,
    as_json: Json = False,
) -> None:
    """Compare two runs of tasks question by question, with intervals."""
    check_confidence(confidence)
    models = [read_settings(folder).model for folder in (first, second)]
    names = None if tasks is None else [task.name for task in find_tasks(split_names(tasks))]
    found = compare_runs(first, second, names, confidence)
    if as_json:
        print_json(
            {
                "first": models[0],
                "second": models[1],
                "confidence": confidence,
                "comparisons": [asdict(one) for one in found],
            }
        )
        return
    console.print(_table(found, models, confidence))
    console.print(
        "Differences are second minus first, with Tango's interval for scores of 0 and 1 (p by "
        "McNemar's exact test) and a paired bootstrap for others.",
        highlight=False,
    )


def _table(found: list[Comparison], models: list[str], confidence: float) -> Table:
    table = Table(title=f"first: {models[0]}, second: {models[1]}")
    table.add_column("task")
    table.add_column("metric")
    for name in ("questions", "first", "second", "difference", f"{confidence:.0%} interval"):
        table.add_column(name, justify="right")
    table.add_column("only first / second", justify="right")
    table.add_column("p", justify="right")
    for one in found:
        form = "{:.3f}" if one.p_value is None else "{:.1%}"
        table.add_row(
            one.task,
            one.metric,
            str(one.questions),
            form.format(one.first),
            form.format(one.second),
            form.format(one.difference),
            f"{form.format(one.low)} to {form.format(one.high)}",
            "-" if one.p_value is None else f"{one.first_only:.0f} / {one.second_only:.0f}",
            "-" if one.p_value is None else f"{one.p_value:.3g}",
        )
    return table
