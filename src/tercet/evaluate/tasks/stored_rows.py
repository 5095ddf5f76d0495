"""Rows of a task from files below one folder: JSON lines, also gzipped."""

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tercet.errors import CheckpointError
from tercet.evaluate.tasks.task import Row, Task


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """All rows of a task that are on disk.

    Attributes:
        splits: rows as the harness reads them, by split; splits without a file are absent.
        sha256: over the bytes of the files, in the order of the task's splits.
    """

    splits: dict[str, list[Row]]
    sha256: str


def read_rows(task: Task, directory: Path) -> StoredRows:
    """The task's rows from the files below `directory`.

    Raises:
        CheckpointError: a needed file is missing, a file cannot be read, or a subject has no row.
    """
    digest = hashlib.sha256()
    splits: dict[str, list[Row]] = {}
    for split, name in task.files.items():
        path = _existing(directory / name)
        if path is None and split in task.needed:
            raise CheckpointError(
                f"{task.name}: no data: {directory / name} is missing (also as {name}.gz): put "
                f"the {split} split there as JSON lines, or leave --task-data out to load it from "
                f"the hub; docs/guides/evaluate-tasks.md says where to get it"
            )
        if path is not None:
            data = path.read_bytes()
            digest.update(data)
            splits[split] = [_convert(task, path, at, row) for at, row in _parse(path, data)]
    for split in task.needed:
        _check_subjects(task, directory / task.files[split], splits[split])
    return StoredRows(splits=splits, sha256=digest.hexdigest())


def _existing(path: Path) -> Path | None:
    zipped = path.with_name(f"{path.name}.gz")
    return next((found for found in (path, zipped) if found.is_file()), None)


def _parse(path: Path, data: bytes) -> list[tuple[int, Row]]:
    rows: list[tuple[int, Row]] = []
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise CheckpointError(f"{path}: cannot be read as UTF-8 text ({error})") from error
    # JSON may hold other line ends of Unicode, at which splitlines would cut
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                row: object = json.loads(line)
            except ValueError as error:
                raise CheckpointError(f"{path}:{number}: is not JSON ({error})") from error
            if not isinstance(row, dict):
                raise CheckpointError(f"{path}:{number}: must be a JSON object, a row a line")
            rows.append((number, cast(Row, row)))
    if not rows:
        raise CheckpointError(f"{path}: holds no rows")
    return rows


def _convert(task: Task, path: Path, number: int, row: Row) -> Row:
    try:
        return task.read(row)
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{path}:{number}: is no row of {task.name} ({type(error).__name__}: {error}): the "
            f"layouts that are read are in docs/guides/evaluate-tasks.md"
        ) from error


def _check_subjects(task: Task, path: Path, rows: list[Row]) -> None:
    if not task.subjects:
        return
    found = {row.get("subject") for row in rows}
    missing = [subject for subject in task.subjects if subject not in found]
    unknown = sorted(str(subject) for subject in found if subject not in task.subjects)
    if missing or unknown:
        raise CheckpointError(
            f"{path}: subjects without a row: {', '.join(missing) or 'none'}; unknown subjects: "
            f"{', '.join(unknown) or 'none'}: {task.name} is the mean over all "
            f"{len(task.subjects)} subjects"
        )
