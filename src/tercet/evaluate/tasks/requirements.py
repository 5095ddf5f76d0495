"""What a task needs beside its data: packages of the extra, NLTK's data, a process for programs."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tercet.child_process.untrusted import run_untrusted
from tercet.errors import CheckpointError, UnsupportedError
from tercet.evaluate.tasks.task import Task

_HARNESS = "lm_eval"


def check_requirements(tasks: Sequence[Task], data: Path | None) -> None:
    """Looks for all that the tasks need, before anything is opened.

    Args:
        tasks: to be evaluated.
        data: the folder of --task-data, whose `nltk_data` is looked into first.

    Raises:
        UnsupportedError: a package is not installed, or no program can be run apart.
        CheckpointError: NLTK's data are not found.
    """
    wanted = [_HARNESS, *(package for task in tasks for package in task.packages)]
    missing = sorted({package for package in wanted if find_spec(package) is None})
    if missing:
        raise UnsupportedError(
            f"tasks are evaluated by lm-evaluation-harness, and {', '.join(missing)} is not "
            f"installed: pip install 'tercet[tasks]'"
        )
    for task in tasks:
        if task.nltk_data is not None:
            _find_nltk_data(task.name, task.nltk_data, data)
        if task.runs_answers and (error := run_untrusted("").error) is not None:
            raise UnsupportedError(
                f"{task.name}: its answers are run in a process of their own, and even an empty "
                f"program {error} there: evaluate it on another machine"
            )


def _find_nltk_data(task: str, resource: str, data: Path | None) -> None:
    nltk: Any = import_module("nltk")
    own = [str(data / "nltk_data")] if data is not None else []
    if own and own[0] not in nltk.data.path:
        nltk.data.path.insert(0, own[0])
    try:
        nltk.data.find(resource)
    except LookupError as error:
        name = resource.rpartition("/")[2]
        raise CheckpointError(
            f"{task}: its answers are scored with NLTK's {resource}, which is in none of "
            f"{', '.join(nltk.data.path)}: run `python -m nltk.downloader {name}`, or put it below "
            f"--task-data as nltk_data/{resource}"
        ) from error
