"""A long job says how far it is, without a terminal too; the clock is the test's own."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet.checkpoints.packed.read import open_packed
from tercet.cli import pace as module
from tercet.cli.pace import Pace, duration, say_pace
from tercet.compress.plan import load_plan, set_calibration
from tercet.errors import PlanError

Run = Callable[..., Any]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_time_left_is_that_of_the_layers_so_far() -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.now += 4
    assert pace.line() == "reading, 4 s gone"
    pace.begin(0, 12, "embeddings")
    clock.now += 100
    unknown = "time left is not known yet"
    assert pace.line() == f"0 of 12 done, at embeddings, 1 min 44 s gone, {unknown}"
    pace.begin(1, 12, "layer 0")
    clock.now += 30
    assert pace.left_s() is None
    pace.begin(2, 12, "layer 1")
    assert pace.left_s() == 30 * 10
    clock.now += 10
    assert pace.left_s() == 290
    assert pace.line() == "2 of 12 done, at layer 1, 2 min 24 s gone, about 4 min 50 s left"
    clock.now += 10
    pace.begin(3, 12, "layer 2")
    assert pace.left_s() == 25 * 9
    clock.now += 1000
    assert pace.left_s() == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def lines_said(monkeypatch: pytest.MonkeyPatch, terminal: bool, quiet: bool) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(module, "EVERY_S", 0.001)
    monkeypatch.setattr(module, "is_terminal", lambda: terminal)
    monkeypatch.setattr(module, "say", said.append)
    with say_pace(quiet) as pace:
        pace.begin(0, 3, "embeddings")
        end = time.monotonic() + (0.05 if terminal or quiet else 60)
        while len(said) < 2 and time.monotonic() < end:
            time.sleep(0.001)
    after = len(said)
    time.sleep(0.01)
    assert len(said) == after
    return said


def test_lines_are_for_logs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(lines_said(monkeypatch, terminal=False, quiet=False)) >= 2
    assert lines_said(monkeypatch, terminal=True, quiet=False) == []
    assert lines_said(monkeypatch, terminal=False, quiet=True) == []


def test_what_is_compiled_is_said_once(tercet: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert tercet("plan", "list").code == 0
    capsys.readouterr()
    logging.getLogger("tercet.kernel.jit.cpp").info("compiling %s", "answer")
    assert capsys.readouterr().err == "compiling answer\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (24, 512)),
        ({"effort": "fast"}, (16, 512)),
        ({"effort": "best", "length": 128}, (256, 128)),
        ({"effort": "fast", "sequences": 3}, (3, 512)),
    ],
)
def test_calibration_of_a_plan(given: dict[str, Any], expected: tuple[int, int]) -> None:
    plan = load_plan("int4")
    found = set_calibration(plan, **given)
    assert (found.calibration.sequences, found.calibration.length) == expected
    assert found.rules == plan.rules
    assert found.calibration.match_teacher == plan.calibration.match_teacher


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"effort": "fastest"}, "'fastest': did you mean 'fast'"),
        ({"sequences": 0}, "calibration: sequences: .* greater than or equal to 1"),
        ({"length": 2}, "calibration: length: .* greater than or equal to 8"),
    ],
)
def test_calibration_out_of_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        set_calibration(load_plan("int4"), **given)


def test_the_command_line_sets_it(tercet: Run, model: Path, plan: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{3 + index % 120}" for index in range(400)))
    words = ["--plan", plan, "--out", tmp_path / "out", "--calibration", text]
    assert tercet("compress", model, *words, "--sequences", 5, "--length", 24).code == 0
    manifest = open_packed(tmp_path / "out").manifest
    assert manifest is not None
    assert manifest.calibration is not None
    assert (manifest.calibration.sequences, manifest.calibration.length) == (5, 24)
