"""Generate: copies the template, or an op of the package, under a new name.

The template is an op named `my_op` that passes its check; a copy of an op passes it as the op does.
"""

import difflib
import importlib
import keyword
import os
import pkgutil
import re
import sys
import tokenize
from importlib import metadata, resources
from io import StringIO
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, ConfigDict

import tercet.ops
from tercet.checkpoints.atomic import atomic_directory
from tercet.errors import UnsupportedError
from tercet.ops.discover import discover, names

# what an op computes at heart -> the op whose folder is a good start for another one like it
PATTERNS = {
    "row": "rms_norm",
    "elementwise": "swiglu",
    "group": "quantize_activation",
    "product": "linear_kl",
}

_PLACEHOLDER = "my_op"
_SUFFIX = ".txt"
# results of the op that is copied: measured, accepted or explained for its own kernels
_RESULTS = ("README.md", "compiled.json", "mutants.json")
_README = """# {name}

EDIT: what it computes, in which models, and why an op of its own pays. It began as a copy of
`{like}`.

```
EDIT: the formulas, of the gradients too
```

## Bytes and operations

| | reads | writes | operations |
|---|---|---|---|
| forward | EDIT | EDIT | EDIT |
| backward | EDIT | EDIT | EDIT |

## Predictions

EDIT, before you measure: the time at one shape is bytes / copy bandwidth of the device. Write down
what you expect to lose, and why; afterwards, what you were wrong about.

## Versions

EDIT: one line for each version that was measured, the slow ones too, with what it taught.

## Measured

<!-- table -->
Not measured yet.
<!-- end -->
"""
_NAME = re.compile(r"[a-z][a-z0-9_]{1,23}")


class NewOp(BaseModel):
    """A folder that was written.

    Attributes:
        name: the op's.
        folder: where it is.
        files: its files' names.
        address: what the other verbs of `tercet kernel` call it: its name where the folder lies
            among the package's ops, else its path.
        next_commands: what to run next, in order, quoted for a shell.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    folder: str
    files: tuple[str, ...]
    address: str
    next_commands: tuple[str, ...]


def guide() -> str:
    """`write-a-kernel.md`, the guide to all of this."""
    return (resources.files("tercet.harness.new_op") / "write-a-kernel.md.txt").read_text("utf-8")


def new_op(name: str, to: str | Path | None = None, *, like: str | None = None) -> NewOp:
    """Writes the folder of a new op: a worked example that is right as it stands.

    Args:
        name: of the op and of its folder: lower-case letters, digits and underscores.
        to: the directory to make the folder in. Default: the package's ops where the working
            directory lies in Tercet's source checkout, else the working directory.
        like: an op of the package to copy in place of the template; `PATTERNS` names some.

    Raises:
        UnsupportedError: for an op to copy that is not there, a name that cannot be used or is
            taken, or a directory that cannot be written to; nothing is written then.
    """
    _check(name)
    parent = Path(to) if to is not None else _default_parent()
    folder = parent.resolve() / name
    if folder.exists():
        raise UnsupportedError(
            f"{folder} exists already: nothing was written; choose another name, or remove it"
        )
    contents = _template(name) if like is None else _copy(like, name)
    try:
        with atomic_directory(folder) as unfinished:
            for file, text in contents.items():
                (unfinished / file).parent.mkdir(parents=True, exist_ok=True)
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
            f"tercet kernel check {quote(address)}",
            f"tercet kernel compile {quote(address)}",
            f"tercet kernel bench {quote(address)} --model llama-3-8b",
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
    # beside its folder Python would import the op in the module's place
    if name in sys.stdlib_module_names or name in metadata.packages_distributions():
        raise UnsupportedError(f"{name!r} is a module that Python imports: choose another name")
    # by their folders: an op that is being edited, and cannot be imported, must not stop a new one
    taken = {module.name: module.ispkg for module in pkgutil.iter_modules(tercet.ops.__path__)}
    if not taken.get(name, True):
        raise UnsupportedError(f"tercet.ops has a module {name!r}: choose another name")
    if name in taken:
        raise UnsupportedError(
            f"there is an op {name!r} already: choose another name, or edit that one in "
            f"{_ops_folder() / name}"
        )


def _check_unused(name: str, source: str) -> None:
    """The op's function must not take the place of another one in the files that are copied."""
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    if name in {each.string for each in tokens if each.type == tokenize.NAME}:
        raise UnsupportedError(
            f"{name!r} is a name that the new op's files use for something else: choose another "
            "name"
        )


def _ops_folder() -> Path:
    assert tercet.ops.__file__ is not None
    return Path(tercet.ops.__file__).resolve().parent


def _default_parent() -> Path:
    ops = _ops_folder()
    checkout, here = ops.parents[2], Path.cwd()
    inside = (checkout / "pyproject.toml").is_file() and here.is_relative_to(checkout)
    return ops if inside and os.access(ops, os.W_OK) else here


def _copy(like: str, name: str) -> dict[str, str]:
    if like not in names():
        near = ", ".join(difflib.get_close_matches(like, names(), 3)) or ", ".join(names())
        raise UnsupportedError(f"there is no op {like!r} to copy: did you mean {near}?")
    folder = _ops_folder() / like
    sources = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    _check_unused(name, sources)
    further = {like, *re.findall(rf'\bdefine\(\s*"({like}_\w*)"', sources)}
    words = "|".join(sorted(further, key=len, reverse=True))
    # not a function or module of the same name elsewhere, as functional.softmax
    found = re.compile(rf"(?:(?<=\btercet\.ops\.)|(?<=\bop\.)|(?<![\w.]))(?:{words})\b")

    def renamed(text: str) -> str:
        return found.sub(lambda match: name + match[0].removeprefix(like), text)

    contents = {"README.md": _README.format(name=name, like=like)}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or {"tuned", "__pycache__"} & set(inside.parts):
            continue
        if path.name not in _RESULTS:
            contents[renamed(str(inside))] = renamed(path.read_text("utf-8"))
    return contents


def _template(name: str) -> dict[str, str]:
    template = resources.files("tercet.harness.new_op") / "template"
    texts = {
        entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8")
        for entry in template.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    _check_unused(name, "".join(text for file, text in texts.items() if file.endswith(".py")))
    return {file: text.replace(_PLACEHOLDER, name) for file, text in texts.items()}


def _forget_ops() -> None:
    """This process finds the new folder too."""
    importlib.invalidate_caches()
    discover.cache_clear()
