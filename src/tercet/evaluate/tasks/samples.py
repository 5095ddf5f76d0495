"""Samples: every question of a run with the model's answers and their scores, as JSON lines.

FOLDER/settings.json        what was asked of which model
FOLDER/TASK.jsonl           a sample a line; there once the whole task is answered
FOLDER/records.jsonl        a record a task: scores with intervals
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import CheckpointError
from tercet.records import Record, append, load

SETTINGS_NAME = "settings.json"
RECORDS_NAME = "records.jsonl"


class RunSettings(BaseModel):
    """What decides the answers of a run.

    Attributes:
        model: what the user called it.
        weights: says which weights these are: a hash of them, and of what is sealed with them.
        limit: questions of each task (and of each subject); None for all.
        shots: examples before each question; None for the task's own number.
        max_tokens: the longest answer that is generated; None for the task's own number.
        chat: whether prompts are written by the model's chat template.
        stored: whether rows come from a folder; they come from the hub otherwise.
        harness: version of lm-evaluation-harness.
        kv_cache_dtype: the codes that keys and values were kept as; None for numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    weights: str
    limit: int | None
    shots: int | None
    max_tokens: int | None
    chat: bool
    stored: bool
    harness: str
    kv_cache_dtype: str | None = None


class Sample(BaseModel):
    """One question and what became of it.

    Attributes:
        task: the harness's name of the task, with the subject.
        question: its place in the data, from 0.
        key: a hash of row, prompt and target: equal where two models were asked the same.
        target: the right answer, as the harness writes it.
        prompts: the text before each answer.
        responses: by request, [log-likelihood, is greedy] or the generated text.
        scores: by metric, also by "metric,filter"; a list where a question has several.
        row: the question's data.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    question: int
    key: str
    target: Any
    prompts: list[str]
    responses: list[Any]
    scores: dict[str, float | list[float]]
    row: dict[str, Any]


def write_samples(folder: Path, task: str, samples: Iterable[Sample]) -> None:
    """Writes all samples of a task, whole or not at all."""
    lines = "".join(f"{sample.model_dump_json()}\n" for sample in samples)
    write_atomic(folder / f"{task}.jsonl", lines.encode())


def read_samples(folder: Path, task: str) -> list[Sample]:
    """All samples of a task; CheckpointError names the line that is none."""
    path = folder / f"{task}.jsonl"
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: holds no answers to {task}: it has {', '.join(answered(folder)) or 'none'};"
            f" run `tercet eval MODEL --tasks {task} --out {folder} --resume`"
        )
    samples: list[Sample] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        try:
            if line:
                samples.append(Sample.model_validate_json(line))
        except ValidationError as error:
            raise CheckpointError(f"{path}:{number}: is no sample: {error}") from error
    return samples


def answered(folder: Path) -> list[str]:
    """Names of the tasks that a run has answered whole: their samples and a record are there."""
    return sorted(name for name in read_records(folder) if (folder / f"{name}.jsonl").is_file())


def read_records(folder: Path) -> dict[str, Record]:
    """The last record of each answered task."""
    records = load(folder / RECORDS_NAME) if (folder / RECORDS_NAME).exists() else []
    return {str(record.settings["task"]): record for record in records}


def read_settings(folder: Path) -> RunSettings:
    """The settings of the run in that folder; CheckpointError if it is none."""
    path = folder / SETTINGS_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is no run of tasks: {SETTINGS_NAME} is missing: give a folder that "
            f"`tercet eval MODEL --tasks NAMES --out FOLDER` wrote"
        )
    try:
        return RunSettings.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as settings of a run ({error})") from error


def check_run(folder: Path, settings: RunSettings, resume: bool) -> list[str]:
    """The tasks that the run in that folder has answered already; nothing is written.

    Raises:
        CheckpointError: something is there and `resume` is False, or it has other settings.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    if not resume:
        raise CheckpointError(
            f"{folder} exists already: choose another folder, or go on with its run by --resume"
        )
    found, wanted = read_settings(folder).model_dump(), settings.model_dump()
    other = [
        f"{name} {json.dumps(found[name])}, now {json.dumps(wanted[name])}"
        for name in wanted
        if found[name] != wanted[name]
    ]
    if other:
        raise CheckpointError(
            f"{folder} was begun with other settings ({'; '.join(other)}): use the same ones, or "
            f"another folder"
        )
    return answered(folder)


def keep_task(
    folder: Path, settings: RunSettings, task: str, samples: Iterable[Sample], record: Record
) -> None:
    """Writes what one task gave: after a kill it is there whole, or the task is asked again."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / SETTINGS_NAME, f"{settings.model_dump_json(indent=1)}\n".encode())
    write_samples(folder, task, samples)
    append(folder / RECORDS_NAME, [record])
