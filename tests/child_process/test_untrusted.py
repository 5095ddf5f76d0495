"""Programs that end well, badly, never, or try what they may not: each says how it went."""

import os
import time
from pathlib import Path

import pytest

from tercet.child_process import untrusted
from tercet.child_process.untrusted import run_untrusted


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("assert sorted([2, 1]) == [1, 2]", None),
        ("def f():\n    return 1\nassert f() == 2", "AssertionError: "),
        ("def f(:", "SyntaxError: "),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import os; os._exit(0)", "ended the process itself (exit status 0)"),
        ("import os; os.kill(os.getpid(), 11)", "ended the process itself (exit status -11)"),
        ("x = bytearray(3 << 30)", "MemoryError: "),
        ("import sys; sys.stdin.read(); print('x' * 10**6)", None),
    ],
)
def test_how_it_ended(program: str, error: str | None) -> None:
    found = run_untrusted(program).error
    assert found == error if error is None else str(found).startswith(error)


def test_a_word_said_early_is_no_success() -> None:
    """What it writes to the child's descriptors is not what the child says at the end."""
    program = "import os\nfor at in range(3, 60):\n"
    program += "    try:\n        os.write(at, b'[\"word\", null]\\n')\n"
    program += "    except OSError:\n        pass\nos._exit(0)"
    assert run_untrusted(program).error == "ended the process itself (exit status 0)"


def test_what_never_ends_is_ended() -> None:
    error = run_untrusted("while True: pass", cpu_seconds=1, wall_seconds=120).error
    assert error == "took too much processor time"
    waits = "import time; time.sleep(600)"
    assert run_untrusted(waits, wall_seconds=1.0).error == "waited too long"


def test_it_sees_no_secrets_and_reaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    assert run_untrusted("import os; assert 'SECRET' not in os.environ").error is None
    missing = run_untrusted("pass").missing
    if any("Landlock" in each or "seccomp" in each for each in missing):
        pytest.skip(f"cannot be closed in here: {missing}")
    target = tmp_path / "file"
    assert str(run_untrusted(f"open({str(target)!r}, 'w')").error).startswith("PermissionError")
    assert not target.exists()
    own = "open('own', 'w').write('x'); assert open('own').read() == 'x'"
    assert run_untrusted(own).error is None
    connect = "import socket; socket.socket(socket.AF_INET)"
    assert str(run_untrusted(connect).error).startswith("PermissionError")
    other = f"import os; os.kill({os.getpid()}, 0)"
    assert str(run_untrusted(other).error).startswith(("PermissionError", "ProcessLookupError"))


def test_what_it_starts_ends_with_it_or_cannot_start() -> None:
    start = "import subprocess, sys\n"
    start += "open('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    start += "raise ValueError(open('pid').read())"
    error = str(run_untrusted(start).error)
    if error.startswith("ValueError: "):
        status = Path(f"/proc/{error.removeprefix('ValueError: ')}/stat")
        # the kernel ends it in its own time, and nobody may be there to reap it
        deadline = time.monotonic() + 120
        while status.exists() and ") Z " not in status.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    else:
        assert error.startswith(("BlockingIOError", "PermissionError"))


def test_missing_guarantees_are_passed_on() -> None:
    found = untrusted._read(b'["no Landlock"]\n["word", null]\n', "word", "ended")
    assert (found.error, found.missing) == (None, ("no Landlock",))
    assert untrusted._read(b"", "word", "ended").error == "ended"
