"""Task: what is asked, as lm-evaluation-harness defines it, and where its questions are on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


def same(row: Row) -> Row:
    """A row that is stored as the harness reads it."""
    return row


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task; its file in `catalog/` exports it in TASKS.

    Attributes:
        name: its name for users, and in the harness unless `definition` says another.
        title: one line for people.
        definition: the YAML file of the harness that defines it, from the harness's folder of
            tasks; with "{subject}" there is one for each of `subjects`.
        files: by the harness's name of a split, the file below --task-data, without ".gz".
        needed: the splits without which nothing can be asked.
        metric: the score that the task is known for, of 0 or 1 a question: "acc", or
            "exact_match,strict-match" where answers pass a filter.
        read: from a stored row to the row that the harness reads; layouts of several publishers.
        subjects: the names that a row's "subject" may have; empty for a task of one subject.
        overrides: entries of the definition that are replaced.
        packages: modules that it needs beside the harness.
        nltk_data: the resource of NLTK that scoring reads.
        thoughtless: an answer that ignores the question; the share that it gets right is shown
            beside the score. None where choices say what chance is.
        runs_answers: whether answers are programs that scoring runs.
        resolve: whether functions that the definition names are loaded; False where `overrides`
            replaces them all, since loading them reaches for the hub.
    """

    name: str
    title: str
    definition: str
    files: Mapping[str, str]
    needed: tuple[str, ...]
    metric: str
    read: Callable[[Row], Row] = same
    subjects: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    packages: tuple[str, ...] = ()
    nltk_data: str | None = None
    thoughtless: str | None = None
    runs_answers: bool = False
    resolve: bool = True
