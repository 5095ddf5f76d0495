"""`tercet bench`: whose turn it is, what is made of the turns, and what can go wrong."""

import json
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.child_process import ChildError
from tercet.errors import UnsupportedError
from tercet.export import target
from tercet.export.target import time_session
from tercet.records import load
from tercet.workflows.bench import bench, run
from tercet.workflows.export import contents

Run = Callable[..., Any]
FEW = {"prompt": 6, "tokens": 3}


PLAN = """
name: int4
rules:
  - {match: "*", format: int4-g32, algorithm: rtn}
"""


@pytest.fixture
def packed(model: Path, compress: Run, tmp_path: Path) -> Path:
    # of a kind that GGUF has no words for
    (model / "tokenizer.json").unlink()
    plan = tmp_path / "int4.yaml"
    plan.write_text(PLAN)
    assert compress(plan=plan).code == 0
    return tmp_path / "out"


class Turns:
    """Children that are not started: what each was asked, and the seconds that it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.asked = list[dict[str, Any]]()
        turns = self

        class Child:
            def __init__(self, *, seconds: float) -> None:
                assert seconds >= 600

            def __enter__(self) -> "Child":
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def request(self, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
                assert function == "tercet.workflows.bench.own_process:measure"
                turns.asked.append(arguments)
                if arguments["engine"] == fails:
                    raise ChildError("crashed", "the child process ended\nwith signal 11")
                turn = sum(each["engine"] == arguments["engine"] for each in turns.asked)
                slow = {"tercet": 1.0, "gguf": 2.0, "onnx": 4.0}[arguments["engine"]]
                # the second turn is the slowest
                seconds = slow * (1.0, 8.0, 2.0)[turn - 1]
                return {
                    "load_s": seconds / 2,
                    "first_s": seconds,
                    "rest_s": 4 * seconds,
                    "peak_resident_bytes": None if arguments["engine"] == "onnx" else turn * 1000,
                }

        monkeypatch.setattr(run, "Child", Child)


def test_engines_take_turns(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    report = bench(packed, ["gguf", "onnx"], prompt=12, tokens=9, rounds=3, threads=1)
    order = [each["engine"] for each in turns.asked]
    assert order == ["tercet", "gguf", "onnx", "onnx", "gguf", "tercet", "tercet", "gguf", "onnx"]
    assert all(each["tokens"] == turns.asked[0]["tokens"] for each in turns.asked)
    assert len(turns.asked[0]["tokens"]) == 12
    assert {each["threads"] for each in turns.asked} == {1}
    assert {each["device"] for each in turns.asked} == {"cpu"}
    own, llama, onnx = report.engines
    assert own.prompt_tokens_per_s is not None
    assert own.prompt_tokens_per_s.model_dump() == {"median": 6, "low": 1.5, "high": 12}
    assert own.decode_tokens_per_s is not None
    assert own.decode_tokens_per_s.model_dump() == {"median": 1, "low": 0.25, "high": 2}
    assert llama.load_s is not None
    assert llama.load_s.model_dump() == {"median": 2, "low": 1, "high": 8}
    assert (own.peak_resident_bytes, onnx.peak_resident_bytes) == (2000, None)
    assert own.kind is None
    assert llama.kind == "Q4_0"
    assert llama.size_bytes is not None
    assert llama.size_bytes > 10_000


def test_one_that_crashes_is_told_and_left_out(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(monkeypatch, fails="gguf")
    own, llama, onnx = bench(packed, ["gguf", "onnx"], **FEW).engines
    assert llama.reason == "the child process ended with signal 11"
    assert llama.decode_tokens_per_s is None
    assert own.reason is onnx.reason is None
    assert [each["engine"] for each in turns.asked].count("gguf") == 1


@pytest.mark.parametrize("engine", ["gguf", "onnx", "openvino"])
def test_real_engines_and_their_record(
    packed: Path, tercet: Run, tmp_path: Path, engine: str
) -> None:
    words = ["--against", engine, "--prompt", 6, "--tokens", 3, "--rounds", 1, "--threads", 1]
    done = tercet("bench", packed, *words, "--record", tmp_path / "r.jsonl", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [each["reason"] for each in found["engines"]] == [None, None]
    records = load(tmp_path / "r.jsonl")
    assert [record.subject for record in records] == [each["engine"] for each in found["engines"]]
    for record, each in zip(records, found["engines"], strict=True):
        assert record.kind == "export-speed"
        assert record.settings["prompt"] == 6
        for name in ("load_s", "prompt_tokens_per_s", "decode_tokens_per_s"):
            assert record.metrics[name] == each[name]["median"] > 0
    assert records[0].metrics["peak_resident_bytes"] > 50e6
    shown = tercet("bench", packed, "--prompt", 4, "--tokens", 2, "--rounds", 1)
    assert shown.code == 0
    assert "int4-g32" in shown.out


def test_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the client moves."""
    clock, asked = [100.0], list[tuple[int, int]]()
    monkeypatch.setattr(target, "perf_counter", lambda: clock[0])

    class Client:
        def stream(self, tokens: list[int], count: int) -> Iterator[int]:
            asked.append((len(tokens), count))
            clock[0] += 3 * len(tokens)
            for token in range(count):
                yield token
                clock[0] += 0.5

    def loaded() -> Client:
        clock[0] += 7
        return Client()

    found = time_session(loaded, [1] * 20, 11)
    assert (found.load_s, found.first_s, found.rest_s) == (7, 60, 5)
    assert asked == [(4, 4), (20, 11)]
    asked.clear()
    time_session(loaded, [1] * 20, 11, whole_runs=2)
    assert asked == [(4, 4), *[(20, 11)] * 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "ggfu"], "did you mean 'gguf'"),
        (["--against", "bitnet"], "cannot be timed: choose from gguf, onnx, openvino"),
        (["--prompt", 60, "--tokens", 10], "the model has 64 positions"),
        (["--device", "tpu"], "allowed are cpu, cuda and cuda:N"),
    ],
)
def test_refused_before_anything_runs(
    packed: Path, tercet: Run, words: list[Any], message: str
) -> None:
    assert message in tercet("bench", packed, *words).error


def test_a_client_that_is_not_there(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(contents, "version", version)
    with pytest.raises(UnsupportedError, match=r"not installed: pip install 'tercet\[gguf\]'"):
        bench(packed, ["gguf"], **FEW)


def test_a_gpu_beside_others(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "resolve_device", lambda device: torch.device(device or "cuda"))
    with pytest.raises(UnsupportedError, match="other engines are timed on a CPU"):
        bench(packed, ["gguf"], device="cuda", **FEW)


def test_no_checkpoint(tercet: Run, tmp_path: Path) -> None:
    assert "no such directory" in tercet("bench", tmp_path / "none").error
