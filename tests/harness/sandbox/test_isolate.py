"""A worker answers, and survives nothing that it should not."""

import io
import math
import os
import time

import psutil
import pytest
import torch

from tercet.child_process import ChildError
from tercet.child_process.fork_server import ForkError, ForkServer
from tercet.child_process.serve import receive, send
from tercet.harness.sandbox.isolate import Worker


def twice(x: torch.Tensor, note: str) -> dict[str, object]:
    print("this goes to standard error")
    return {"x": 2 * x, "note": [note, None, torch.bfloat16]}


def fail() -> None:
    raise ValueError("no")


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def sleep() -> None:
    time.sleep(3600)


def hoard() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"1" * 50_000_000))


def test_a_worker_answers_and_names_what_went_wrong() -> None:
    here = "tests.harness.sandbox.test_isolate"
    with Worker(seconds=600.0, memory_bytes=2 * 2**30, paths=(".",)) as worker:
        x = torch.arange(6.0).reshape(2, 3)[:, ::2]
        result = worker.call(f"{here}:twice", x=x, note="a")
        assert torch.equal(result["x"], 2 * x)
        assert result["note"] == ["a", None, torch.bfloat16]
        assert "this goes to standard error" in worker.said
        with pytest.raises(ChildError, match="ValueError: no") as raised:
            worker.call(f"{here}:fail")
        assert raised.value.kind == "raised"
        assert worker.alive
        with pytest.raises(ChildError, match=r"longer than 0\.5 s") as raised:
            worker.call(f"{here}:sleep", seconds=0.5)
        assert raised.value.kind == "time"
        assert not worker.alive


@pytest.mark.parametrize(
    ("function", "kind", "message"), [("crash", "crashed", "SIGSEGV"), ("hoard", "memory", "GiB")]
)
def test_a_crash_and_a_flood_end_the_child_only(function: str, kind: str, message: str) -> None:
    with (
        Worker(seconds=600.0, memory_bytes=2 * 2**30, paths=(".",)) as worker,
        pytest.raises(ChildError, match=message) as raised,
    ):
        worker.call(f"tests.harness.sandbox.test_isolate:{function}")
    assert raised.value.kind == kind


def tell_parent_and_hash() -> tuple[int, int]:
    return os.getppid(), hash("a word")


def test_from_the_second_on_processes_are_forks_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_TESTS_WORD", "asked for by nobody else")
    told: list[tuple[int, int]] = []
    for fresh in (False, False, False, True):
        with Worker(seconds=600.0, threads=1, fresh=fresh) as worker:
            told.append(tuple(worker.call(f"{__file__}:tell_parent_and_hash")))
    ours = os.getpid()
    (first, _), (second, its_hash), (third, other_hash), (fresh, fresh_hash) = told
    assert first == fresh == ours
    assert second == third != ours
    assert its_hash == other_hash != fresh_hash


def test_a_process_of_several_threads_is_no_fork() -> None:
    for _ in range(2):
        with Worker(seconds=600.0, threads=2) as worker:
            assert worker.call(f"{__file__}:tell_parent_and_hash")[0] == os.getpid()


def test_a_server_that_cannot_fork_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ForkError("it cannot")

    monkeypatch.setattr(ForkServer, "fork", refuse)
    for _ in range(2):
        with Worker(seconds=600.0, threads=1) as worker:
            assert worker.call(f"{__file__}:tell_parent_and_hash")[0] == os.getpid()


def test_what_is_stopped_does_nothing_until_it_goes_on() -> None:
    with Worker(seconds=600.0, memory_bytes=None) as worker:
        process = psutil.Process(worker.pid)
        with worker.stopped():
            assert process.status() == psutil.STATUS_STOPPED
        assert worker.call("os:getpid") == worker.pid


@pytest.mark.parametrize(
    "content",
    [
        {"a": [1, 2.5, None, True, "PK"], "b": {"c": [math.inf, -0.0]}},
        {"x": torch.arange(4, dtype=torch.int8), "dtype": torch.bfloat16},
        {1: "a key that JSON would turn into text"},
        "PK",
    ],
)
def test_a_message_arrives_as_it_was_sent(content: object) -> None:
    stream = io.BytesIO()
    send(stream, content)
    stream.seek(0)
    assert repr(receive(stream)) == repr(content)
    assert receive(stream) is None


def test_what_was_said_before_an_answer_is_there_with_it() -> None:
    """Though nobody listens in the meantime: the thread that does may come late."""
    with Worker(seconds=600.0, paths=(".",)) as worker:
        with worker._hearing:
            worker.call("tests.harness.sandbox.test_isolate:twice", x=torch.ones(2), note="a")
        assert worker.said.count("this goes to standard error") == 1
        assert worker.said.count("this goes to standard error") == 1
    assert "this goes to standard error" in worker.said
