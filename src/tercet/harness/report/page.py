"""Page: a self-contained HTML file; styles and script inside, nothing loaded from elsewhere."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import CheckpointError
from tercet.harness.report.script import SCRIPT
from tercet.harness.report.style import STYLE

_BEGINNING = b"<!doctype html>"


def page(title: str, introduction: str, sections: Iterable[str]) -> str:
    """The HTML of a page; title and introduction are text, sections HTML."""
    body = "\n".join(sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="soft">{escape(introduction)}</p>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def check_page(path: Path) -> None:
    """CheckpointError where no page can be written, or something else than a page would be lost."""
    if path.is_dir():
        raise CheckpointError(
            f"{path}: is a directory: give an HTML file, such as {path / 'report.html'}"
        )
    if not path.parent.is_dir():
        raise CheckpointError(f"{path.parent}: no such directory: make it, or choose another file")
    if path.is_file() and not _is_page(path):
        raise CheckpointError(
            f"{path}: is no HTML page, and a report replaces nothing else: choose another file"
        )


def _is_page(path: Path) -> bool:
    """Whether a file is empty or begins as pages do."""
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)).lower() in (b"", _BEGINNING)


def write_page(path: Path, content: str) -> None:
    """Writes a page, whole or not at all, where `check_page` allows it; through a link, too."""
    check_page(path)
    if path.exists() and not path.is_file():
        # a pipe, or /dev/stdout: a rename would take its place
        path.write_text(content, encoding="utf-8")
    else:
        write_atomic(path.resolve(), content.encode())


def section(title: str, content: str, note: str = "") -> str:
    """A titled part of a page; title and note are text, content HTML."""
    below = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{below}{content}</section>"
