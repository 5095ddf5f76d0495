"""What the ranks of a command say, and how their ends are told: without starting any."""

import signal
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tercet.checkpoints.seal import seal
from tercet.child_process.child import ChildError
from tercet.errors import CheckpointError, UnsupportedError
from tercet.runtime import Generation, GenerationSettings
from tercet.runtime.tensor_parallel import processes
from tercet.runtime.tensor_parallel.messages import Done, Failed, Job, Loaded, Message, Text
from tercet.runtime.tensor_parallel.processes import RankStream


def generation(text: str) -> Generation:
    return Generation(
        text=text, ids=(3, 4), prompt_tokens=2, reason="stop", prefill_s=1.0, decode_s=1.0
    )


def failed(kind: str, message: str, *, refused: bool = False) -> Failed:
    return Failed(kind=kind, refused=refused, message=message, trace=f"a trace of {kind}\n")


def open_stream(
    directory: Path,
    said: Sequence[Sequence[Message | None]],
    codes: Sequence[int] = (0, 0),
    verify: bool = False,
) -> RankStream:
    """The stream of ranks that say this; None is the end of one, with its exit code."""
    job = Job(
        directory=directory, prompt="", chat=None, settings=GenerationSettings(),
        world_size=len(said), device=None, kv_cache_dtype=None,
    )  # fmt: skip
    connections, ranks = list[Connection](), list[Any]()
    for messages, code in zip(said, codes, strict=True):
        here, there = Pipe()
        connections.append(here)
        for message in messages:
            if message is None:
                there.close()
            else:
                there.send(message)
        ranks.append(SimpleNamespace(exitcode=code, join=lambda: None, held=there))
    return RankStream(job, verify, ranks, connections)


def test_text_of_the_first_rank_until_all_are_done(tmp_path: Path) -> None:
    done = [Done(result=generation(text), peak_bytes=size) for text, size in (("ab", 5), ("x", 7))]
    # a rank may be ahead of another that still loads
    said = [[Loaded(), Text(chunk="a"), Text(chunk="b"), done[0]], [Loaded(), done[1]]]
    stream = open_stream(tmp_path, said)
    with pytest.raises(UnsupportedError, match="the stream is not finished"):
        _ = stream.result
    assert list(stream) == ["a", "b"]
    assert stream.result == generation("ab")
    assert stream.peak_bytes == 7


def test_no_text_of_files_that_were_changed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    seal(tmp_path)
    said = [[Loaded(), Text(chunk="a")], [Loaded()]]
    assert next(iter(open_stream(tmp_path, said, verify=True))) == "a"
    (tmp_path / "model.safetensors").write_bytes(b"weighTs")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: sha256"):
        next(iter(open_stream(tmp_path, said, verify=True)))


def test_what_a_rank_refuses_is_refused_here(tmp_path: Path) -> None:
    said = [[failed("UnsupportedError", "cannot be cut", refused=True)], [Loaded()]]
    with pytest.raises(UnsupportedError, match=r"^cannot be cut$"):
        list(open_stream(tmp_path, said))


@pytest.mark.parametrize("first", [0, 1])
def test_the_rank_that_was_killed_is_named_and_not_one_that_failed_for_it(
    tmp_path: Path, first: int
) -> None:
    lost = failed("RuntimeError", "Connection closed by peer")
    said: list[list[Message | None]] = [[Loaded(), lost], [Loaded(), lost], [Loaded(), lost]]
    said[2 * first] = [Loaded(), None]
    codes = [0, 0, 0]
    codes[2 * first] = -signal.SIGKILL
    with pytest.raises(ChildError, match="was ended by SIGKILL, as a system does") as caught:
        list(open_stream(tmp_path, said, codes))
    assert f"rank {2 * first} of 3" in str(caught.value)
    assert (caught.value.kind, caught.value.status) == ("crashed", -signal.SIGKILL)


def test_an_end_without_a_signal(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="rank 1 of 2 exited with code 3: the others"):
        list(open_stream(tmp_path, [[Loaded()], [None]], (0, 3)))


def test_a_failure_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.01)
    said = [[Loaded()], [failed("OutOfMemoryError", "CUDA out of memory")]]
    with pytest.raises(
        ChildError, match="rank 1 of 2 failed: OutOfMemoryError: CUDA out of memory"
    ):
        list(open_stream(tmp_path, said))
    assert capsys.readouterr().err == "a trace of OutOfMemoryError\n"
