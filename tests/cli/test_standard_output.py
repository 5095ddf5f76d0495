"""Standard output that lacks a character, or takes no more text."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

FULL = Path("/dev/full")
SAYS = """
import sys
import typer
import tercet.cli.main as command_line
command_line.app = lambda: typer.echo(sys.argv[1])
command_line.main()
"""


def outcome(stdout: Path, text: str, **variables: str) -> tuple[int, str]:
    environment: Mapping[str, str] = {**os.environ, **variables}
    with stdout.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", SAYS, text],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["text", "--json"])
@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_a_full_disk_is_one_line(words: str, unbuffered: str) -> None:
    code, error = outcome(FULL, words, PYTHONUNBUFFERED=unbuffered)
    assert code == 2
    assert error.splitlines() == [
        "error: standard output, or a file that was being written: No space left on device: free "
        "some space, or choose another place"
    ]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("latin-1", "é ? ?".encode("latin-1")), ("utf-8", "é 好 ?".encode())],
)
def test_a_character_that_the_encoding_lacks_is_replaced(
    tmp_path: Path, encoding: str, expected: bytes
) -> None:
    text = "é 好 \udcff"
    code, error = outcome(tmp_path / "out", text, PYTHONIOENCODING=encoding)
    assert (code, error) == (0, "")
    assert (tmp_path / "out").read_bytes().strip() == expected
