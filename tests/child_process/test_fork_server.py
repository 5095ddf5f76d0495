"""Children that are forks of a process which has imported what takes seconds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tercet.child_process import Child, ChildError
from tercet.child_process.fork_server import ForkError, ForkServer, server_for

HERE = str(Path(__file__))
LIMIT = 600.0  # ends a hang


# the process in which `become_ready` was called
_ready_in: list[int] = []


def become_ready() -> None:
    """In the server."""
    _ready_in.append(os.getpid())
    os.environ["OF_THE_SERVER"] = str(os.getpid())


def become_ready_with_a_thread() -> None:
    """In the server."""
    import threading

    threading.Thread(target=threading.Event().wait, daemon=True).start()


def tell() -> dict[str, object]:
    """In a child."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "ready in": _ready_in,
        "hash": hash("a word"),
        "variables": [os.environ.get(name) for name in ("PYTEST_CURRENT_TEST", "OF_THE_SERVER")],
        "open": len(os.listdir("/proc/self/fd")),
    }


def read(descriptor: int) -> str:
    """In a child."""
    return os.pread(descriptor, 100, 0).decode()


def say(words: str) -> None:
    """In a child."""
    print(words, flush=True)


def leave(status: int) -> None:
    """In a child: without a word."""
    os._exit(status)


def be_killed() -> None:
    """In a child."""
    os.kill(os.getpid(), signal.SIGSEGV)


def wait() -> None:
    """In a child: for ever."""
    signal.pause()


def variables() -> dict[str, str]:
    return dict(os.environ) | {"OMP_NUM_THREADS": "1"}


def server_of(function: str) -> ForkServer:
    """What forks the children that have this function in common."""
    found = None
    while found is None:
        found = server_for(variables(), f"{HERE}:{function}")
    return found


@pytest.fixture
def server() -> ForkServer:
    return server_of("become_ready")


def child(server: ForkServer, **options: object) -> Child:
    given: dict[str, object] = {
        "seconds": LIMIT, "environment": variables(), "preload": f"{HERE}:become_ready",
    }  # fmt: skip
    made = Child(**given | options)  # pyright: ignore[reportArgumentType]
    assert server.has_children
    return made


def test_a_child_begins_with_what_the_server_has(server: ForkServer) -> None:
    seen: list[dict[str, object]] = []
    for word in ("one", "two"):
        with child(server, environment=variables() | {"PYTEST_CURRENT_TEST": word}) as forked:
            seen.append(forked.request(f"{HERE}:tell", {}))
            assert seen[-1]["pid"] == forked.pid
    one, two = seen
    assert one["pid"] != two["pid"]
    assert one["parent"] == two["parent"] != os.getpid()
    assert (one["session"], two["session"]) == (one["pid"], two["pid"])
    assert one["ready in"] == two["ready in"] == [one["parent"]]
    assert one["hash"] == two["hash"]
    # its own variables, not the server's
    assert [each["variables"] for each in seen] == [["one", None], ["two", None]]


def test_modules_are_looked_for_on_the_childs_own_path(server: ForkServer, tmp_path: Path) -> None:
    for word in ("one", "two"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "found_on_its_path.py").write_text(f"def tell():\n    return {word!r}\n")
        path = os.pathsep.join((str(tmp_path / word), *sys.path))
        with child(server, environment=variables() | {"PYTHONPATH": path}) as forked:
            assert forked.request("found_on_its_path:tell", {}) == word
    with child(server) as forked, pytest.raises(ChildError, match="found_on_its_path"):
        forked.request("found_on_its_path:tell", {})


def test_children_have_their_own_streams_and_files_and_no_others(server: ForkServer) -> None:
    files = [os.memfd_create(word) for word in ("first", "second")]
    for file, word in zip(files, ("first", "second"), strict=True):
        os.write(file, word.encode())
    with child(server, descriptors=files) as one, child(server) as two:
        assert [one.request(f"{HERE}:read", {"descriptor": each}) for each in files] == [
            "first",
            "second",
        ]
        for each in files:
            with pytest.raises(ChildError, match="Bad file descriptor"):
                two.request(f"{HERE}:read", {"descriptor": each})
        one.request(f"{HERE}:say", {"words": "from the first"})
        two.request(f"{HERE}:say", {"words": "from the second"})
        assert (one.said, two.said) == ("from the first\n", "from the second\n")
        counts = [each.request(f"{HERE}:tell", {})["open"] for each in (one, two)]
        assert counts[0] - counts[1] == len(files)
    for each in files:
        os.close(each)


@pytest.mark.parametrize(
    ("function", "arguments", "status", "words"),
    [
        ("leave", {"status": 7}, 7, "exit status 7"),
        ("be_killed", {}, -signal.SIGSEGV, "SIGSEGV"),
    ],
)
def test_how_one_ended_is_told(
    server: ForkServer, function: str, arguments: dict[str, int], status: int, words: str
) -> None:
    with child(server) as forked:
        with pytest.raises(ChildError, match=words) as raised:
            forked.request(f"{HERE}:{function}", arguments)
        assert (raised.value.kind, raised.value.status) == ("crashed", status)
        assert not forked.alive
    with child(server) as another:
        assert another.request(f"{HERE}:tell", {})["pid"] == another.pid


def test_limits_hold_and_it_can_be_stopped(server: ForkServer) -> None:
    with child(server) as forked:
        forked.wait_until_started(LIMIT)
        with forked.stopped():
            assert psutil.Process(forked.pid).status() == psutil.STATUS_STOPPED
        assert forked.request(f"{HERE}:tell", {})["pid"] == forked.pid
        with pytest.raises(ChildError) as raised:
            forked.request(f"{HERE}:wait", {}, seconds=0.2)
        assert raised.value.kind == "time"
        assert not forked.alive


def test_one_that_is_let_go_ends_by_itself(server: ForkServer) -> None:
    with child(server) as forked:
        forked.request(f"{HERE}:tell", {})
        forked.finish(LIMIT)
        assert forked._process.poll() == 0


def test_without_its_server_a_child_ends_and_another_server_follows(server: ForkServer) -> None:
    with child(server) as forked:
        parent = forked.request(f"{HERE}:tell", {})["parent"]
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(ChildError, match="SIGKILL"):
            forked.request(f"{HERE}:wait", {})
    with pytest.raises(ForkError, match="has ended"):
        server.fork(variables(), [])
    assert not server.alive
    with child(server_of("become_ready")) as another:
        assert another.request(f"{HERE}:tell", {})["parent"] not in (parent, os.getpid())


def test_where_threads_run_a_process_is_started_instead() -> None:
    server = server_of("become_ready_with_a_thread")
    with pytest.raises(ForkError, match="2 threads run in the server"):
        server.fork(variables(), [])
    preload = f"{HERE}:become_ready_with_a_thread"
    with Child(seconds=LIMIT, environment=variables(), preload=preload) as alone:
        assert alone.request(f"{HERE}:tell", {})["parent"] == os.getpid()


def test_it_ends_with_the_process_that_started_it() -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import test_fork_server as tests\n"
        "forked = tests.child(tests.server_of('become_ready'))\n"
        "print(forked.request(tests.HERE + ':tell', {})['parent'], forked.pid, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(HERE).parent)], capture_output=True, check=True
    )
    started = [int(word) for word in done.stdout.split()]
    assert len(started) == 2
    end = time.monotonic() + LIMIT
    while any(map(psutil.pid_exists, started)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, started))


def test_each_environment_has_its_own_and_the_last_three_are_kept() -> None:
    def of(word: str) -> ForkServer | None:
        return server_for(variables() | {"WORD": word}, "os:getpid")

    words = ("one", "two", "three", "four")
    assert [of(word) for word in words] == [None] * 4
    servers = [server for word in words if (server := of(word)) is not None]
    assert [server.alive for server in servers] == [False, True, True, True]
    assert [of(word) for word in words[1:]] == servers[1:]
    again = of("one")
    assert again is not None
    assert again not in servers
    assert [server.alive for server in servers] == [False, False, True, True]
    assert server_for(variables() | {"WORD": "four"}, "os:getppid") is None
    for server in (again, *servers):
        server.close()
