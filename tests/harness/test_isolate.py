"""A worker answers, and survives nothing that it should not."""

import time

import pytest
import torch

from tercet.harness.isolate import Worker, WorkerError


def twice(x: torch.Tensor, note: str) -> dict[str, object]:
    print("this goes to standard error")
    return {"x": 2 * x, "note": [note, None, torch.bfloat16]}


def fail() -> None:
    raise ValueError("no")


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def sleep() -> None:
    time.sleep(60)


def hoard() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"1" * 50_000_000))


def test_a_worker_answers_and_names_what_went_wrong() -> None:
    here = "tests.harness.test_isolate"
    with Worker(seconds=60.0, memory_bytes=2 * 2**30, paths=(".",)) as worker:
        x = torch.arange(6.0).reshape(2, 3)[:, ::2]
        result = worker.call(f"{here}:twice", x=x, note="a")
        assert torch.equal(result["x"], 2 * x)
        assert result["note"] == ["a", None, torch.bfloat16]
        assert "this goes to standard error" in worker.said
        with pytest.raises(WorkerError, match="ValueError: no") as raised:
            worker.call(f"{here}:fail")
        assert raised.value.kind == "raised"
        assert worker.alive
        with pytest.raises(WorkerError, match=r"longer than 0\.5 s") as raised:
            worker.call(f"{here}:sleep", seconds=0.5)
        assert raised.value.kind == "time"
        assert not worker.alive


@pytest.mark.parametrize(
    ("function", "kind", "message"), [("crash", "crashed", "SIGSEGV"), ("hoard", "memory", "GiB")]
)
def test_a_crash_and_a_flood_end_the_child_only(function: str, kind: str, message: str) -> None:
    with (
        Worker(seconds=60.0, memory_bytes=2 * 2**30, paths=(".",)) as worker,
        pytest.raises(WorkerError, match=message) as raised,
    ):
        worker.call(f"tests.harness.test_isolate:{function}")
    assert raised.value.kind == kind


def test_what_was_said_before_an_answer_is_there_with_it() -> None:
    """Though nobody listens in the meantime: the thread that does may come late."""
    with Worker(seconds=60.0, paths=(".",)) as worker:
        with worker._hearing:
            worker.call("tests.harness.test_isolate:twice", x=torch.ones(2), note="a")
        assert worker.said.count("this goes to standard error") == 1
        assert worker.said.count("this goes to standard error") == 1
    assert "this goes to standard error" in worker.said
