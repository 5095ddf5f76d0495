"""gate: whether a compressed model lost more on tasks than is allowed, against its teacher."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tercet.checkpoints.packed.read import is_packed, open_packed
from tercet.errors import PlanError
from tercet.evaluate.tasks.catalog import find_tasks
from tercet.evaluate.tasks.compare import count_pairs, pair_samples
from tercet.evaluate.tasks.gate import Decision, decide
from tercet.evaluate.tasks.samples import SETTINGS_NAME, answered, read_settings
from tercet.workflows.compressed_from import compressed_from
from tercet.workflows.tasks import Progress, Questions, evaluate_tasks, read_questions


def gate(
    model: str | Path,
    limits: Mapping[str, float],
    *,
    teacher: str | Path | None = None,
    confidence: float = 0.95,
    data: str | Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    max_tokens: int | None = None,
    chat: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> list[Decision]:
    """Decide, task by task, whether the model's loss is within its limit.

    Args:
        model: a packed checkpoint, or the folder of a run that has answered the tasks.
        limits: by task, the largest drop of its score that is allowed, as a share.
        teacher: the uncompressed model or the folder of its run; None for the model that the
            checkpoint was made from.
        confidence: of the gate.
        data: as `read_questions` takes it, as all that follow; not needed where both are runs.
        limit: questions of each task.
        shots: examples before each question.
        max_tokens: the longest answer that is generated.
        chat: write prompts by the model's chat template.
        out: folder that gets both runs, as `model` and `teacher`; None to keep none.
        resume: go on with the runs in `out`.
        device: as `evaluate_tasks` takes it.
        progress: called as requests are done.

    Raises:
        PlanError: an unknown task, a limit out of range, or no teacher.
        CheckpointError: data, a model or a run is missing, or the runs were asked other questions.
    """
    tasks = find_tasks(limits)
    for name, allowed in limits.items():
        if not 0 <= allowed < 1:
            raise PlanError(
                f"{name}: a drop of {100 * allowed:g} points: must be from 0 to less than 100"
            )
    pair = {"teacher": _teacher_of(model) if teacher is None else str(teacher), "model": str(model)}
    questions = None
    if not all(map(_is_run, pair.values())):
        questions = read_questions(
            list(limits), data=data, limit=limit, shots=shots, max_tokens=max_tokens, chat=chat
        )
    elif any((data, limit, shots is not None, max_tokens, chat)):
        raise PlanError(
            "--task-data, --limit, --shots, --max-tokens and --chat are about questions that are "
            "asked now: both folders are runs, which have their answers; leave these options out"
        )
    for name in pair.values():
        if _is_run(name):
            _check_run(Path(name), list(limits), questions)
    with _folder(out) as folder:
        runs: dict[str, Path] = {}
        for role, name in pair.items():
            runs[role] = Path(name) if _is_run(name) else folder / role
            if questions is not None and not _is_run(name):
                evaluate_tasks(
                    name,
                    questions,
                    out=runs[role],
                    resume=resume,
                    device=device,
                    progress=progress,
                )
        return [
            decide(
                task.name,
                task.metric,
                count_pairs(pair_samples(runs["teacher"], runs["model"], task.name), task.metric),
                limit=limits[task.name],
                confidence=confidence,
                tasks=len(tasks),
            )
            for task in tasks
        ]


def _is_run(name: str) -> bool:
    return (Path(name) / SETTINGS_NAME).is_file()


def _teacher_of(model: str | Path) -> str:
    source = compressed_from([open_packed(model)]) if is_packed(Path(model)) else None
    if source is None:
        raise PlanError(
            f"{model} does not say which model it was made from: name that model, or the folder of "
            f"its run, with --teacher"
        )
    return str(source.reference)


def _check_run(folder: Path, tasks: list[str], questions: Questions | None) -> None:
    """A run takes the place of a model if it has answered what the other is going to be asked."""
    missing = [name for name in tasks if name not in answered(folder)]
    if missing:
        raise PlanError(
            f"{folder}: has not answered {', '.join(missing)}: it has "
            f"{', '.join(answered(folder)) or 'none'}; give the model itself, or ask it first"
        )
    if questions is None:
        return
    found = read_settings(folder).model_dump()
    other = [
        f"{name} {found[name]}, now {wanted}"
        for name, wanted in questions.settings.items()
        if found[name] != wanted
    ]
    if other:
        raise PlanError(f"{folder} was asked with other settings ({'; '.join(other)}): use its own")


@contextmanager
def _folder(out: str | Path | None) -> Generator[Path]:
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory() as folder:
        yield Path(folder)
