"""The command line, run in the test's own process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tercet.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on standard error that a refusal prints."""
        assert self.code == 2, (self.code, self.out, self.err)
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        assert self.err.endswith(lines[0] + "\n")
        assert "Traceback" not in self.err
        return lines[0]


def runner(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[Outcome] = Outcome,
) -> Callable[..., Outcome]:
    """Runs the real entry point with the arguments that it is called with."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tercet", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        captured = capsys.readouterr()
        return kind(code, captured.out, captured.err)

    return run
