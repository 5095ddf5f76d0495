"""Paths that end in a name: what lies beside a directory is called after it."""

from pathlib import Path

from tercet.errors import CheckpointError


def named_path(path: str | Path) -> Path:
    """Returns the path as it is, or the real one where it ends in no name: "." and "..".

    Raises:
        CheckpointError: the path is empty, as of a shell variable that is not set; `Path` alone
            would take it for the current directory.
    """
    if path == "":
        raise CheckpointError(
            "'': an empty path; give the path of a directory ('.' is the current one)"
        )
    path = Path(path)
    return path.resolve() if path.name in ("", "..") else path


def partial_directory(out: Path) -> Path:
    """Where an unfinished run for `out` lies."""
    out = named_path(out)
    return out.with_name(out.name + ".partial")
