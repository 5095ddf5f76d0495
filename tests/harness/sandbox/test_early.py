"""A process that is started ahead of its check."""

import subprocess
import sys
from collections.abc import Generator

import pytest

from tercet.harness.check.run import check
from tercet.harness.sandbox import early
from tercet.harness.sandbox.early import Early, start_early, take_early
from tercet.harness.sandbox.isolate import MEMORY_BYTES, SECONDS
from tercet.harness.sandbox.session import Apart
from tercet.ops.discover import find


@pytest.fixture(autouse=True)
def _none_left() -> Generator[None]:
    yield
    for started in list(early._started.values()):
        started.close()
    early._started.clear()


def test_the_next_check_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[Early]()

    def noted(device: str, seconds: float, memory_bytes: int | None) -> Early | None:
        found = take_early(device, seconds, memory_bytes)
        taken.extend([found] if found else [])
        return found

    monkeypatch.setattr("tercet.harness.sandbox.session.take_early", noted)
    start_early("cpu")
    op = find("swiglu")
    report = check(op, implementation="torch", device="cpu", cases=op.cases[:2], drawn=0)
    assert report.passed, report.faults[:3]
    assert len(taken) == 1
    assert not taken[0].worker.alive  # it ended with the check


def test_it_is_taken_once() -> None:
    start_early("cpu")
    first = take_early("cpu", SECONDS, MEMORY_BYTES)
    assert first is not None
    assert first.worker.alive
    assert take_early("cpu", SECONDS, MEMORY_BYTES) is None
    first.close()


@pytest.mark.parametrize(
    ("device", "seconds", "memory_bytes"),
    [("cuda", SECONDS, MEMORY_BYTES), ("cpu", 3.0, MEMORY_BYTES), ("cpu", SECONDS, None)],
)
def test_one_that_does_not_suit_is_ended(
    device: str, seconds: float, memory_bytes: int | None
) -> None:
    start_early("cpu")
    (started,) = early._started.values()
    assert take_early(device, seconds, memory_bytes) is None
    assert not started.worker.alive


def test_one_that_ended_early_is_followed_by_another() -> None:
    start_early("cpu")
    (started,) = early._started.values()
    started.worker._kill()
    place = Apart("swiglu", "torch", None, "cpu")
    try:
        assert place.ask("changed") == {"state": [], "imported": []}
    finally:
        place.close()


def test_starting_one_imports_no_torch() -> None:
    code = (
        "import sys; from tercet.harness.sandbox import early; import tercet.cli.kernel.check; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
