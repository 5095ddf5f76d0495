"""One run at a time writes to an output; the lock of a run that was killed is no lock."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.checkpoints import output_lock
from tercet.checkpoints.output_lock import lock_output
from tercet.errors import CheckpointError

HOLD = """
import sys, time
from pathlib import Path
from tercet.checkpoints.output_lock import lock_output
with lock_output(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no such lock")


def hold(out: Path) -> "subprocess.Popen[str]":
    """Another process that holds the lock."""
    words = [sys.executable, "-c", HOLD, str(out)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    return other


def take(out: Path) -> None:
    with lock_output(out):
        pass


def test_the_second_is_refused_until_the_first_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = hold(out)
    try:
        with pytest.raises(CheckpointError, match="out: another run is writing there"):
            take(out)
        take(tmp_path / "beside")
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.communicate()
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]
    take(out)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    take(tmp_path / "a" / "b" / "out")
    assert list(tmp_path.iterdir()) == []
    with lock_output(tmp_path / "a" / "out"):
        (tmp_path / "a" / "out").mkdir()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "out"]


def test_a_file_that_the_one_before_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened before the first run ended, locked after it: a third run would not see this one."""
    lock = output_lock._lock

    def late(handle: int) -> bool:
        (tmp_path / ".out.lock").unlink()
        return lock(handle)

    monkeypatch.setattr(output_lock, "_lock", late)
    with pytest.raises(CheckpointError, match="another run"):
        take(tmp_path / "out")
