"""tercet gate MODEL --teacher T --max-drop TASK=POINTS ..."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tercet.cli.options.device import Device
from tercet.cli.pace import follow
from tercet.cli.show import Json, console, print_json
from tercet.cli.tasks.questions import (
    Chat,
    Confidence,
    Limit,
    MaxTokens,
    Out,
    Resume,
    Shots,
    TaskData,
    check_confidence,
)
from tercet.errors import PlanError
from tercet.evaluate.tasks.gate import Decision, Verdict, overall
from tercet.workflows.task_gate import gate

EXIT_CODES = {Verdict.WITHIN: 0, Verdict.EXCEEDED: 1, Verdict.UNDECIDED: 3}


def gate_command(
    model: Annotated[
        str,
        typer.Argument(
            help="Packed checkpoint, or the folder of its run from `tercet eval --tasks ... --out`."
        ),
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK=POINTS]...", help="More limits, as --max-drop takes them."),
    ] = None,
    max_drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Largest drop of a task's score that is allowed, in percentage points: "
            "mmlu=1.0. Several: with spaces, commas, or the option again."
        ),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Uncompressed model, or the folder of its run. Default: the model that the "
            "checkpoint was made from."
        ),
    ] = None,
    confidence: Confidence = 0.95,
    task_data: TaskData = None,
    limit: Limit = None,
    shots: Shots = None,
    max_tokens: MaxTokens = None,
    chat: Chat = False,
    out: Out = None,
    resume: Resume = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Decide whether a compressed model lost more on tasks than is allowed.

    Exit codes: 0 proven to be within the limits, 1 a larger loss is proven, 3 not decided by these
    questions, 2 bad input.
    """
    check_confidence(confidence)
    limits = _limits([*(max_drop or []), *(more or [])])
    with follow(as_json, "opening the model") as tell:
        decisions = gate(
            model,
            limits,
            teacher=teacher,
            confidence=confidence,
            data=task_data,
            limit=limit,
            shots=shots,
            max_tokens=max_tokens,
            chat=chat,
            out=out,
            resume=resume,
            device=device,
            progress=tell,
        )
    verdict = overall(decisions)
    _show(decisions, verdict, confidence, as_json)
    raise typer.Exit(EXIT_CODES[verdict])


def _show(decisions: list[Decision], verdict: Verdict, confidence: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "verdict": verdict,
                "confidence": confidence,
                "tasks": [
                    {**asdict(one), "drop": one.pairs.drop, "reason": _reason(one)}
                    for one in decisions
                ],
            }
        )
    else:
        console.print(_table(decisions))
        for one in decisions:
            console.print(_reason(one), highlight=False, soft_wrap=True)
        console.print(f"gate: {_WORDS[verdict]}", highlight=False)


_WORDS = {
    Verdict.WITHIN: "passed",
    Verdict.EXCEEDED: "failed",
    Verdict.UNDECIDED: "not decided",
}


def _limits(words: list[str]) -> dict[str, float]:
    """TASK=POINTS words, also several in one with commas, as shares by task."""
    limits: dict[str, float] = {}
    for word in (part for given in words for part in given.split(",") if part):
        task, _, points = word.partition("=")
        try:
            share = float(points) / 100
        except ValueError:
            raise PlanError(
                f"--max-drop {word!r}: must be TASK=POINTS, such as mmlu=1.0 for at most one "
                f"percentage point"
            ) from None
        if task in limits:
            raise PlanError(f"--max-drop names {task} twice: give one limit a task")
        limits[task] = share
    if not limits:
        raise PlanError("no limit is given: --max-drop TASK=POINTS, such as --max-drop mmlu=1.0")
    return limits


def _reason(one: Decision) -> str:
    drop = f"{one.task}: the drop is {100 * one.pairs.drop:.2f} points of {one.metric}"
    if one.verdict is Verdict.EXCEEDED:
        return f"{drop}, at least {100 * one.low:.2f}: more than {100 * one.limit:g} is proven"
    if one.verdict is Verdict.WITHIN:
        return f"{drop}, at most {100 * one.high:.2f}: within {100 * one.limit:g} is proven"
    between = f"{drop}, between {100 * one.low:.2f} and {100 * one.high:.2f}"
    if one.more is None:
        return f"{between}: not decided, and no number of questions would if it stays at the limit"
    return (
        f"{between}: not decided; about {one.more:,} more questions would (with a chance of 80 %); "
        f"where the task has no more of them, allow more or ask for less confidence"
    )


def _table(decisions: list[Decision]) -> Table:
    table = Table()
    table.add_column("task")
    for name in ("questions", "only teacher right", "only model right", "drop", "limit"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for one in decisions:
        table.add_row(
            one.task,
            str(one.pairs.questions),
            f"{one.pairs.first_only:.0f}",
            f"{one.pairs.second_only:.0f}",
            f"{100 * one.pairs.drop:.2f}",
            f"{100 * one.limit:g}",
            _WORDS[one.verdict],
        )
    return table
