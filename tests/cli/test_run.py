"""`tercet run`: where its prompt comes from."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_a_prompt_from_standard_input(
    tercet: Callable[..., Any],
    compress: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compress()
    packed, more = tmp_path / "out", ("--max-tokens", 4, "--json", "--device", "cpu")
    expected = json.loads(tercet("run", packed, "--prompt", "w3 w7\nw9", *more).out)
    for given in (b"w3 w7\nw9\n", b"\xef\xbb\xbfw3 w7\nw9\r\n"):
        give(monkeypatch, given)
        found = json.loads(tercet("run", packed, "--prompt", "-", *more).out)
        assert (found["ids"], found["prompt_tokens"]) == (expected["ids"], 3)


def test_what_is_no_text_is_refused(
    tercet: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, b"abc\xff")
    error = tercet("run", tmp_path, "--prompt", "-").error
    assert "byte 4 of standard input is 0xff" in error


def test_standard_input_that_is_closed_is_refused(
    tercet: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    error = tercet("run", tmp_path, "--prompt", "-").error
    assert "--prompt - reads standard input, which is closed: give the text itself" in error
