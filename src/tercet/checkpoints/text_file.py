"""A text file as the documents that it holds.

FILE.jsonl, FILE.jsonl.gz    a document a line, its key "text"
any other                    one document; unpacked where the name ends in .gz
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from tercet.errors import PlanError


def read_texts(path: Path) -> Iterator[str]:
    """The documents of a file, one after the other; of JSON lines one is in memory at a time.

    Raises:
        PlanError: the file cannot be read, is no UTF-8 text, or a line is no document.
    """
    try:
        with _open(path) as file:
            if is_of(path, ".jsonl", ".jsonl.gz"):
                yield from _documents(path, file)
            else:
                # a mark of the byte order is no text
                yield file.read().decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise PlanError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def is_of(path: Path, *suffixes: str) -> bool:
    """Whether the name ends in one of these, in any case."""
    return path.name.lower().endswith(suffixes)


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if is_of(path, ".gz") else path.open("rb")


def _documents(path: Path, lines: Iterable[bytes]) -> Iterator[str]:
    for number, raw in enumerate(lines, 1):
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise PlanError(f"{path}, line {number}: no JSON ({error})") from error
        yield _text_of(row, f"{path}, line {number}")


def _text_of(row: Any, where: str) -> str:
    text = cast("dict[str, Any]", row).get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise PlanError(
            f"{where}: no JSON object whose key text holds a string, but {_describe(row)}: write "
            f"one so; a conversation becomes text by tokenizer.apply_chat_template"
        )
    try:
        text.encode()  # a tokenizer takes no lone surrogates
    except UnicodeEncodeError as error:
        raise PlanError(
            f"{where}: text holds {error.object[error.start]!a}, half of a character: write it "
            f"whole, or leave it out"
        ) from error
    return text


def _describe(row: Any) -> str:
    if not isinstance(row, dict):
        return f"a {type(row).__name__}"
    keys = cast("dict[str, Any]", row)
    if "text" in keys:
        return f"text of type {type(keys['text']).__name__}"
    return f"the keys {', '.join(keys) or '(none)'}"
