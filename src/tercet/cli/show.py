"""Terminal output: JSON for programs, tables and progress bars for people."""

import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from math import isfinite, isnan
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

# what is shown has brackets of its own: names, paths, a model's words
console = Console(markup=False)
_json_stream: ContextVar[TextIO | None] = ContextVar("_json_stream", default=None)
_status = Console(stderr=True, markup=False)


def mebibytes(size_bytes: float) -> str:
    """Format a size in bytes as text, in MiB."""
    return f"{size_bytes / 2**20:,.0f} MiB"


@contextmanager
def only_json_on_stdout() -> Generator[None]:
    """Within the block standard output gets what `print_json` prints; all else goes to standard
    error.

    An op's own files may print, and a program reads the JSON.
    """
    before = _json_stream.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _json_stream.reset(before)


def print_json(content: Any) -> None:
    """Print `content` as JSON on standard output."""
    text = json.dumps(_strict(content), indent=1, allow_nan=False)
    typer.echo(text, file=_json_stream.get())


def _strict(content: Any) -> Any:
    """The same with strings for infinities and NaN, which JSON does not have."""
    if isinstance(content, float) and not isfinite(content):
        return "NaN" if isnan(content) else "Infinity" if content > 0 else "-Infinity"
    if isinstance(content, Mapping):
        return {key: _strict(value) for key, value in cast("Mapping[Any, Any]", content).items()}
    if isinstance(content, list | tuple):
        return [_strict(each) for each in cast("list[Any]", content)]
    return content


def print_size(directory: Path, size: dict[str, Any]) -> None:
    """Print a packed checkpoint's size, as `inspect` gives it, on standard output."""
    console.print(
        f"{directory}: {mebibytes(size['disk_bytes'])}, {size['bits_per_weight']:.2f} bits "
        f"a weight with everything counted, {size['ratio_to_bf16']:.1f} times smaller than bf16",
        soft_wrap=True,
    )


def say(line: str, style: str | None = None) -> None:
    """Print a progress message on standard error."""
    _status.print(line, style=style, highlight=False, soft_wrap=True)


def is_terminal() -> bool:
    """Whether standard error is a terminal, which shows a bar."""
    return _status.is_terminal


@contextmanager
def bar(quiet: bool = False) -> Generator[Progress, None, None]:
    """Show a progress bar with the remaining time on standard error, unless `quiet`."""
    columns = (
        TextColumn("{task.description:24}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=_status, disable=quiet or not _status.is_terminal, transient=True
    ) as progress:
        yield progress
