"""Pages: tables that stand in Markdown between marks, made anew from records.

<!-- NAME -->
| ... |
<!-- end -->
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Row = Sequence[str]

NOTHING = "Not measured yet."
_END = "<!-- end -->"


def markdown(rows: Sequence[Row], numbers: bool = False) -> str:
    """A table, its first row the head; NOTHING where that is all.

    Args:
        rows: cells as they are to be read; a bar inside of one is the caller's to escape.
        numbers: columns after the first stand to the right.
    """
    if len(rows) < 2:
        return NOTHING
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    rule = "|---|" + ("---:|" if numbers else "---|") * (len(rows[0]) - 1)
    return "\n".join([head, rule, *rest])


def has(text: str, name: str) -> bool:
    """Whether a page has a place of that name."""
    return f"<!-- {name} -->" in text


def fill(text: str, name: str, content: str) -> str:
    """The page with other content between the mark of that name and the end after it.

    Raises:
        ValueError: the page has no such mark, or no end after it.
    """
    mark = f"<!-- {name} -->"
    before, start, rest = text.partition(mark)
    _, end, after = rest.partition(_END)
    if not start or not end:
        raise ValueError(f"the page has no place {mark} ... {_END}: add it where the table belongs")
    return f"{before}{mark}\n{content}\n{_END}{after}"


def write_pages(description: str, script: str, pages: Callable[[], Mapping[Path, str]]) -> None:
    """What a script of tables does: writes pages, or with --check fails where one is out of date.

    Args:
        description: for --help.
        script: how to run it, for the message.
        pages: each page's path and how it should be.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="Only say what is out of date.")
    check = parser.parse_args().check
    stale = {
        path: text
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if check and stale:
        sys.exit(f"out of date: {', '.join(map(str, stale))}: run python {script}")
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
