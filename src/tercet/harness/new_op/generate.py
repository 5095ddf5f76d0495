"""Generate: copies the template, an op named `my_op` that passes its check, under a new name."""

import importlib
import keyword
import os
import pkgutil
import re
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict

import tercet.ops
from tercet.checkpoints.atomic import atomic_directory
from tercet.errors import UnsupportedError
from tercet.kernel import select

_PLACEHOLDER = "my_op"
_SUFFIX = ".txt"
_NAME = re.compile(r"[a-z][a-z0-9_]{1,23}")


class NewOp(BaseModel):
    """A folder that was written.

    Attributes:
        name: the op's.
        folder: where it is.
        files: its files' names.
        address: what the other verbs of `tercet kernel` call it: its name where the folder lies
            among the package's ops, else its path.
        next_commands: what to run next, in order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    folder: str
    files: tuple[str, ...]
    address: str
    next_commands: tuple[str, ...]


def new_op(name: str, to: str | Path | None = None) -> NewOp:
    """Writes the folder of a new op: a worked example that is right as it stands.

    Args:
        name: of the op and of its folder: lower-case letters, digits and underscores.
        to: the directory to make the folder in. Default: the package's ops where Tercet runs from
            a source checkout that can be written to, else the working directory.

    Raises:
        UnsupportedError: for a name that cannot be used or is taken, or a directory that cannot
            be written to; nothing is written then.
    """
    _check(name)
    parent = Path(to) if to is not None else _default_parent()
    folder = parent.resolve() / name
    if folder.exists():
        raise UnsupportedError(
            f"{folder} exists already: nothing was written; choose another name, or remove it"
        )
    contents = _contents(name)
    try:
        with atomic_directory(folder) as unfinished:
            for file, text in contents.items():
                (unfinished / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnsupportedError(
            f"cannot write {folder}: {error.strerror}; name another directory with --to"
        ) from error
    _forget_ops()
    address = name if folder.parent == _ops_folder() else str(folder)
    return NewOp(
        name=name,
        folder=str(folder),
        files=tuple(sorted(contents)),
        address=address,
        next_commands=(
            f"tercet kernel check {address}",
            f"tercet kernel compile {address}",
            f"tercet kernel bench {address} --model llama-3-8b",
        ),
    )


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UnsupportedError(
            f"{name!r} cannot name an op: it takes 2 to 24 lower-case letters, digits and "
            "underscores, a letter first, as in rms_norm"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise UnsupportedError(f"{name!r} is a word of Python: choose another name")
    # by their folders: an op that is being edited, and cannot be imported, must not stop a new one
    if name in {module.name for module in pkgutil.iter_modules(tercet.ops.__path__)}:
        raise UnsupportedError(
            f"there is an op {name!r} already: choose another name, or edit that one in "
            f"{_ops_folder() / name}"
        )


def _ops_folder() -> Path:
    assert tercet.ops.__file__ is not None
    return Path(tercet.ops.__file__).resolve().parent


def _default_parent() -> Path:
    ops = _ops_folder()
    is_checkout = (ops.parents[2] / "pyproject.toml").is_file()
    return ops if is_checkout and os.access(ops, os.W_OK) else Path.cwd()


def _contents(name: str) -> dict[str, str]:
    template = resources.files("tercet.harness.new_op") / "template"
    return {
        entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8").replace(_PLACEHOLDER, name)
        for entry in template.iterdir()
        if entry.name.endswith(_SUFFIX)
    }


def _forget_ops() -> None:
    """This process finds the new folder too."""
    importlib.invalidate_caches()
    select.discover.cache_clear()
