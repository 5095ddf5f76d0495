"""Source place: in which line of an author's files an exception was raised."""

import traceback
from pathlib import Path


def source_place(error: BaseException, folder: Path) -> str | None:
    """The last place in the folder's files that the exception came through, as "op.py, line 12".

    Args:
        error: with its traceback; of a SyntaxError, the line that it is about.
        folder: the author's.

    Returns:
        None where it came through none of them.
    """
    frames = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    for file, line in reversed(frames):
        path = Path(file).resolve()
        if path.is_relative_to(folder.resolve()):
            return f"{path.relative_to(folder.resolve())}, line {line}"
    return None
