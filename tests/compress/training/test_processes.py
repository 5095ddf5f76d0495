"""`train` and `distill` in two processes, as torchrun starts them: one curve, one checkpoint."""

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tercet.compress.plan import Plan
from tercet.compress.qat.student import Student
from tercet.compress.training.group import Group, open_group
from tercet.compress.training.journal import Line, read_journal
from tercet.compress.training.settings import TrainingSettings
from tercet.errors import CheckpointError
from tercet.workflows.training.from_source import distill

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*slow path"),
    # Python 3.12 on forking; the children use one thread each
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
PLAN = Plan.model_validate(
    {
        "name": "layers",
        "rules": [
            {
                "match": "*.layers.*", "format": "ternary-channel", "algorithm": "qat",
                "options": {"activation": "int8_token"},
            },
            {"match": "*embed_tokens", "format": "int8-channel", "algorithm": "qat"},
        ],
    }
)  # fmt: skip


def run(model: Path, ids: Path, out: Path, sequences: int, **options: Any) -> None:
    settings = TrainingSettings(
        steps=8, sequences=sequences, accumulate=2, length=32, learning_rate=4e-3, warmup=2,
        clip=0.3, save_every=3,
    )  # fmt: skip
    distill(model, PLAN, out, data=[ids], settings=settings, device="cpu", **options)


def process(rank: int, ports: list[int], model: Path, ids: Path, out: Path) -> None:
    """One of two: a run that is killed after step 5, and gone on with from step 3."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]),
    }  # fmt: skip

    def finish(self: Group, student: Student, limit: float) -> Tensor:
        killed.append(1)
        if len(killed) == 6:
            raise Killed
        return whole(self, student, limit)

    killed, whole = list[int](), Group.finish
    Group.finish = finish
    with pytest.raises(Killed):
        run(model, ids, out, 1)
    Group.finish = whole
    # the store of the first may live on for a moment
    os.environ["MASTER_PORT"] = str(ports[1])
    run(model, ids, out, 1, resume=True)


class Killed(Exception):
    """Stands for whatever ends a run."""


def weights(directory: Path) -> dict[str, torch.Tensor]:
    files = sorted(directory.glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def curve(directory: Path) -> list[Line]:
    return read_journal(directory / "training.jsonl")


def test_two_processes_distill_what_one_does(model: Path, ids: Path, tmp_path: Path) -> None:
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        ports = [free.getsockname()[1] for free in (one, other)]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=process, args=(rank, ports, model, ids, tmp_path / "two"))
        for rank in range(2)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join(100)
        assert one.exitcode == 0
    run(model, ids, tmp_path / "one", 2)
    alone, together = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert not list((tmp_path / "two").glob("**/state*"))
    assert [line["tokens"] for line in together] == [128 * step for step in range(1, 9)]
    for a, b in zip(alone, together, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=2e-3)
        assert b["gradient_norm"] == pytest.approx(a["gradient_norm"], rel=2e-2)
    assert alone[-1]["loss"] < 0.9 * alone[0]["loss"]
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert second[name].shape == value.shape
        if value.is_floating_point():
            assert torch.allclose(second[name].float(), value.float(), rtol=0.02, atol=0.02), name


def test_a_state_of_other_processes_is_refused(model: Path, ids: Path, tmp_path: Path) -> None:
    state = tmp_path / "out.partial" / "unfinished"
    run(model, ids, tmp_path / "out", 1)
    (tmp_path / "out").rename(tmp_path / "out.partial")
    state.mkdir()
    for rank in (0, 2):
        (state / f"state-00000003-{rank}-of-3.pt").touch()
    with pytest.raises(CheckpointError, match="no whole state of 1 processes"):
        run(model, ids, tmp_path / "out", 1, resume=True)


def test_one_process_of_torchrun_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with open_group("cpu") as group:
        assert (group.mesh, group.first, group.world_size) == (None, True, 1)
        group.barrier()
        assert group.mean([torch.tensor(3.0)]).tolist() == [3.0]
