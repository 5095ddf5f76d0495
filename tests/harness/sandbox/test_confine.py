"""What a judged process tries against its judge, and that it is refused: one attack a case."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import tercet
from tercet.child_process.confine import confine
from tercet.harness.sandbox.isolate import Worker

PACKAGE = Path(tercet.__file__).parent
HERE = "tests.harness.sandbox.test_confine"


def close_in(writable: list[str]) -> list[str]:
    return confine(writable=writable, file_bytes=1 << 20)


def write_to(path: str) -> str:
    return _tried(lambda: Path(path).write_text("x"))


def read_from(path: str) -> str:
    return _tried(lambda: Path(path).read_bytes()[:1])


def send_signal(pid: int) -> str:
    return _tried(lambda: os.kill(pid, signal.SIGUSR1))


def connect() -> str:
    return _tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))


def leave_the_session() -> str:
    return _tried(lambda: subprocess.run([sys.executable, "-c", ""], start_new_session=True))


def start_a_helper() -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid


def write_much(path: str) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return _tried(lambda: Path(path).write_bytes(bytes(2 << 20)))


def _tried(attack) -> str:
    try:
        attack()
    except OSError as error:
        return type(error).__name__
    return "done"


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("own")
    with Worker(seconds=600.0, paths=(".",)) as worker:
        missing = worker.call(f"{HERE}:close_in", writable=[str(folder)])
        if missing:
            pytest.skip("; ".join(missing))
        yield worker, folder


def test_it_writes_to_its_own_folder_alone(confined, tmp_path: Path) -> None:
    worker, folder = confined
    for path in (tmp_path / "a", PACKAGE / "errors.py", Path.home() / "x", Path("/dev/shm/x")):
        assert worker.call(f"{HERE}:write_to", path=str(path)) == "PermissionError", path
        assert not path.exists() or path.read_text() != "x"
    assert worker.call(f"{HERE}:write_to", path=str(folder / "a")) == "done"
    assert worker.call(f"{HERE}:read_from", path=str(PACKAGE / "errors.py")) == "done"


def test_it_writes_no_large_file(confined) -> None:
    worker, folder = confined
    assert worker.call(f"{HERE}:write_much", path=str(folder / "large")) == "OSError"


@pytest.mark.parametrize("file", ["mem", "environ", "maps", "fd/1"])
def test_other_processes_are_closed_to_it(confined, file: str) -> None:
    worker, _ = confined
    path = f"/proc/{os.getpid()}/{file}"
    assert worker.call(f"{HERE}:read_from", path=path) == "PermissionError"
    assert worker.call(f"{HERE}:write_to", path=path) == "PermissionError"
    assert worker.call(f"{HERE}:read_from", path="/proc/self/maps") == "done"


def test_it_sends_nothing_and_leaves_nothing(confined) -> None:
    worker, _ = confined
    assert worker.call(f"{HERE}:send_signal", pid=os.getpid()) == "PermissionError"
    assert worker.call(f"{HERE}:connect") == "PermissionError"
    assert worker.call(f"{HERE}:leave_the_session") == "PermissionError"


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    with Worker(seconds=600.0, paths=(".",)) as worker:
        worker.call(f"{HERE}:close_in", writable=[str(tmp_path)])
        helper = worker.call(f"{HERE}:start_a_helper")
        assert psutil.pid_exists(helper)
    end = time.monotonic() + 600
    while psutil.pid_exists(helper) and time.monotonic() < end:
        if psutil.Process(helper).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    assert not psutil.pid_exists(helper) or psutil.Process(helper).status() == "zombie"
