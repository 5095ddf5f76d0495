"""AsyncJournal writes lines in order, as a GPU sends them; a resumed run loses none."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.compress.training import async_journal as module
from tercet.compress.training.async_journal import AsyncJournal
from tercet.compress.training.journal import Line, read_journal
from tercet.compress.training.loop import Loop
from tercet.compress.training.phases import Phases, seconds
from tercet.compress.training.settings import TrainingSettings
from tercet.kernel.device.async_copy import copy_async
from tercet.workflows.training.from_source import distill

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Late:
    """An event of a GPU that is behind: reached once the test, or who waits for it, says so."""

    made: list["Late"]

    def __init__(self, device: torch.device) -> None:
        self.at, self.there = len(Late.made), False
        Late.made.append(self)

    def query(self) -> bool:
        return self.there

    def synchronize(self) -> None:
        self.there = True

    def elapsed_since(self, earlier: "Late") -> float:
        assert self.there
        return float(self.at - earlier.at)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[Late]:
    Late.made = []
    monkeypatch.setattr(module, "DeviceEvent", Late)
    return Late.made


def sent(lines: AsyncJournal, number: int) -> None:
    lines.send(
        torch.tensor([number], dtype=torch.float64),
        lambda numbers, passed: {"step": numbers[0], "passed": passed},
    )


def test_a_line_waits_for_its_numbers_and_the_host_for_the_third(late: list[Late]) -> None:
    written = list[Line]()
    lines = AsyncJournal(torch.device("cpu"), written.append)
    for number in (1, 2):
        sent(lines, number)
    assert written == []
    sent(lines, 3)
    assert [line["step"] for line in written] == [1]
    late[2].there = late[3].there = True
    sent(lines, 4)
    assert [line["step"] for line in written] == [1, 2, 3]
    sent(lines, 5)
    lines.flush()
    assert [line["step"] for line in written] == [1, 2, 3, 4, 5]
    assert [line["passed"] for line in written] == [1.0] * 5


def test_numbers_of_a_device_arrive() -> None:
    written = list[Line]()
    lines = AsyncJournal(DEVICE, written.append)
    phases = Phases(DEVICE)
    with phases("product"):
        x = copy_async(torch.full((300, 300), 2.0), DEVICE)
        y = x @ x
    spans = phases.take()
    lines.send(
        y[0, :2].double(), lambda numbers, passed: {"y": numbers, "s": passed, **seconds(spans)}
    )
    lines.flush()
    (line,) = written
    assert line["y"] == [1200.0, 1200.0]
    assert 0 < line["product"] < line["s"] < 60
    assert phases.take() == []


class Killed(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.usefixtures("late")
def test_a_run_that_is_resumed_has_the_lines_that_were_on_their_way(
    model: Path, ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, out = Loop._one, tmp_path / "out"

    def until_five(self: Loop) -> Any:
        if self.step == 5:
            raise Killed
        return once(self)

    settings = TrainingSettings(steps=6, sequences=1, length=16, save_every=5)
    same: dict[str, Any] = {"data": [ids], "settings": settings, "device": "cpu"}
    monkeypatch.setattr(Loop, "_one", until_five)
    with pytest.raises(Killed):
        distill(model, "ternary", out, **same)
    monkeypatch.setattr(Loop, "_one", once)
    result = distill(model, "ternary", out, resume=True, **same)
    lines = read_journal(out / "training.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert result.last == lines[-1]
