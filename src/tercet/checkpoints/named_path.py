"""Paths that end in a name: what lies beside a directory is called after it."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from tercet.errors import CheckpointError


def named_path(path: str | Path) -> Path:
    """Returns the path as it is, or the real one where it ends in no name: "." and "..".

    Raises:
        CheckpointError: the path is empty, as of a shell variable that is not set; `Path` alone
            would take it for the current directory. Or it is no path, as a model in memory.
    """
    if not is_path(path):
        raise CheckpointError(
            f"a {type(path).__name__} in the place of a path: give a str or a Path; write what is "
            f"in memory into a directory first, a model of transformers by save_pretrained"
        )
    if path == "":
        raise CheckpointError(
            "'': an empty path; give the path of a directory ('.' is the current one)"
        )
    path = Path(path)
    return path.resolve() if path.name in ("", "..") else path


def is_path(value: object) -> bool:
    """Whether a value can be the path of a file: text, a Path or the like."""
    return isinstance(value, str | PathLike)


def demand_no_input(out: Path, inputs: Iterable[Path | None]) -> None:
    """CheckpointError where a file that is to be written is one of those that are read."""
    for each in inputs:
        if each is not None and out.exists() and each.exists() and out.samefile(each):
            raise CheckpointError(f"{out}: is read, so it is not written to: choose another file")


def partial_directory(out: Path) -> Path:
    """Where an unfinished run for `out` lies."""
    out = named_path(out)
    return out.with_name(out.name + ".partial")
