"""Writes that a killed run cannot halve: a temporary name, fsync, rename.

After a kill there is the old file or the new one; at worst a `.NAME.*.partial` lies beside it.
"""

import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from tercet.errors import CheckpointError


def write_atomic(path: str | Path, content: bytes | Callable[[Path], None]) -> None:
    """Writes a file whole or not at all.

    Args:
        path: the file; its directory exists.
        content: the bytes, or a function that writes them to the temporary path it is given.

    Errors:
        CheckpointError on a full disk, with the bytes needed, and at a limit on file sizes; nothing
        is left behind.
    """
    path = Path(path)
    with disk_errors(path, len(content) if isinstance(content, bytes) else None):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            if callable(content):
                content(temporary)
            else:
                temporary.write_bytes(content)
            _give_default_mode(temporary, 0o666)
            _sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def atomic_directory(target: str | Path, *, replace: bool = False) -> Generator[Path]:
    """A temporary directory beside `target` that takes its name when the block ends well.

    On any error, Ctrl-C included, the temporary directory is removed and `target` is as it was.
    With `replace`, an old `target` is moved aside first and removed last.

    Errors:
        CheckpointError when `target` exists and `replace` is False, and on a full disk.
    """
    target = Path(target)
    if target.exists() and not replace:
        raise in_the_way(target)
    with disk_errors(target, None):
        target.parent.mkdir(parents=True, exist_ok=True)
        name = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
        temporary = Path(name)
        try:
            yield temporary
            _give_default_mode(temporary, 0o777)
            for entry in sorted(temporary.rglob("*")):
                _sync(entry)
            _sync(temporary)
            _move_into_place(temporary, target, replace)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync(target.parent)


def remove_partial(target: Path) -> None:
    """Removes what killed runs have left of `target`; the caller holds its lock."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????.partial"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path, needed_bytes: int | None) -> Generator[None]:
    """Turns a disk that takes no more of `path` into a CheckpointError that says so."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not is_out_of_space(error):
            raise
        if _error_number(error) == errno.EFBIG:
            why = "a file grew beyond the limit on file sizes (ulimit -f, or the file system's)"
            advice = "raise the limit or choose another place"
        else:
            needed = f"{needed_bytes:,} bytes" if needed_bytes is not None else "more"
            why = f"the disk is full: needs {needed}, free are {_free_bytes(path):,}"
            advice = "free some space or choose another place"
        raise CheckpointError(f"{path}: {why}: {advice}; nothing was left half-written") from error


def is_out_of_space(error: BaseException | None) -> bool:
    """Whether the disk took no more: it or a quota is full, or a file is at the size limit."""
    return _error_number(error) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def grow_files(directory: Path) -> None:
    """Appends to the files of a directory that is thrown away; OSError where one cannot grow.

    C++ streams say only that a write failed ("basic_ios::clear: iostream error"); the same files
    fail again here, with the reason.
    """
    for path in directory.iterdir():
        if path.is_file():
            with path.open("ab") as file:
                file.write(bytes(1 << 20))


def _error_number(error: BaseException | None) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors writes in Rust and passes the error number on in the text only
    found = re.search(r"os error (\d+)", str(error)) if isinstance(error, SafetensorError) else None
    return int(found[1]) if found else None


def _free_bytes(path: Path) -> int:
    place = next(parent for parent in path.absolute().parents if parent.exists())
    return shutil.disk_usage(place).free


def _move_into_place(temporary: Path, target: Path, replace: bool) -> None:
    aside = temporary.with_suffix(".old")
    if replace:
        with suppress(FileNotFoundError):
            os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except OSError as error:
        if aside.exists():
            os.rename(aside, target)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise in_the_way(target) from error
        raise
    if aside.is_dir():
        shutil.rmtree(aside)
    else:
        aside.unlink(missing_ok=True)


def in_the_way(target: Path) -> CheckpointError:
    """The error of a write to a place where something lies already."""
    return CheckpointError(f"{target} exists already: choose another name, or remove it first")


def _give_default_mode(path: Path, mode: int) -> None:
    """mkstemp and mkdtemp make private files; a checkpoint is as readable as any other file."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(mode & ~mask)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
