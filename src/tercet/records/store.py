"""The store: one JSON object a line, only ever appended to."""

import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from tercet.errors import CheckpointError
from tercet.records.record import Record


def append(path: Path, records: Iterable[Record]) -> None:
    """Adds records to the end of the file, in one write, flushed to the disk.

    A last line without an end, as of an editor, gets one first: else two records would be one line.
    OSError, which names the file, where it cannot be written.
    """
    lines = "".join(record.model_dump_json() + "\n" for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" + lines if lines and _ends_within_a_line(path) else lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # a write, unlike an opening, does not name it
        error.filename = error.filename or str(path)
        raise


def _ends_within_a_line(path: Path) -> bool:
    # of /dev/stdout and its like, which have no end, nothing can be read
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def check_appendable(path: Path) -> None:
    """OSError where nothing can be added to the file: before what takes minutes to measure.

    CheckpointError where it holds something else than records, which one would spoil.
    """
    is_new = not path.exists()
    if path.is_file():
        load(path)
    append(path, ())
    if is_new:
        path.unlink()


def load(path: Path) -> list[Record]:
    """All records of a file, empty lines aside; CheckpointError names the line that is none."""
    try:
        # not splitlines: a name in JSON may hold what Unicode calls an end of line
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{path}: no file of records, which is UTF-8 text, one JSON object a line: give a file "
            f"that --record wrote"
        ) from error
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise CheckpointError(
                f"{path}:{number}: not a record: {field + ': ' if field else ''}{first['msg']}: "
                f"remove that line, or give a file that --record wrote"
            ) from error
    return records


def load_latest(path: Path) -> list[Record]:
    """The last record of each subject and settings, in the order in which they first came."""
    found = dict[tuple[object, ...], Record]()
    for record in load(path):
        found[record.subject, *sorted(record.settings.items())] = record
    return list(found.values())
