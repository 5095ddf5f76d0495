"""A file that was cut anywhere is completed to the same bytes, and nothing is measured twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tercet.compress.allocate.measure import Scope, measure_sensitivity
from tercet.compress.allocate.rows import Windows
from tercet.compress.allocate.sensitivity_file import Sensitivity, load
from tercet.compress.allocate.tail import Tail
from tercet.compress.plan import Plan
from tercet.errors import CheckpointError, PlanError

SCOPE = Scope(formats=("ternary-g64", "int3-g64", "int4-g64-asym"))
WINDOWS = Windows(count=2, length=24)
LINES = 2 + 44


def resume(path: Path, model: Path, tokens: Tensor, plan: Plan, scope: Scope = SCOPE) -> None:
    measure_sensitivity(
        model,
        scope,
        path,
        plan=plan,
        calibration=tokens,
        windows=WINDOWS,
        device="cpu",
        resume=True,
    )


def begin_of(data: bytes, line: int) -> int:
    return sum(len(each) for each in data.splitlines(keepends=True)[:line])


@pytest.mark.parametrize(
    ("line", "more"),
    [(0, 0), (0, 9), (1, 0), (1, 3), (2, 0), (2, 30), (20, 0), (45, -1), (46, 0)],
)
def test_cut_anywhere(
    measured: tuple[Path, Sensitivity],
    model: Path,
    tokens: Tensor,
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: int,
    more: int,
) -> None:
    whole = measured[0].read_bytes()
    assert whole.count(b"\n") == LINES
    path = tmp_path / "s.jsonl"
    path.write_bytes(whole[: begin_of(whole, line) + more])
    kept = path.read_bytes().count(b"\n")
    count = 0
    kl = Tail.kl

    def counted(self: Tail, *arguments: object) -> float:
        nonlocal count
        count += 1
        return kl(self, *arguments)

    monkeypatch.setattr(Tail, "kl", counted)
    resume(path, model, tokens, plan)
    assert path.read_bytes() == whole
    assert count == LINES - max(kept, 2)


def test_killed_in_the_middle_of_a_line(model: Path, tokens: Tensor, tmp_path: Path) -> None:
    """SIGKILL to the real command once half of a line is on the disk."""
    save_file({"input_ids": tokens}, tmp_path / "ids.safetensors")
    kills = """
import os, signal
from tercet.compress.allocate import sensitivity_file as file
append, count = file.SensitivityWriter._append, 0
def torn(self, line):
    global count
    count += 1
    if count == 9:
        with self.path.open("a") as out:
            out.write(line.model_dump_json()[:40])
            out.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, line)
file.SensitivityWriter._append = torn
"""
    run = "from tercet.cli.main import main; main()"
    words = [
        *("sensitivity", str(model), "--formats", "int3-g64,int4-g64", "--device", "cpu"),
        *("--calibration", str(tmp_path / "ids.safetensors"), "--windows", "2"),
    ]
    out = tmp_path / "s.jsonl"
    killed = subprocess.run(
        [sys.executable, "-c", kills + run, *words, "--out", str(out)],
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert out.read_bytes().count(b"\n") == 8
    assert not out.read_bytes().endswith(b"\n")
    arguments = {"plan": "int4", "calibration": tmp_path / "ids.safetensors", "device": "cpu"}
    two = Scope(formats=("int3-g64", "int4-g64"))
    more = {**arguments, "windows": Windows(count=2)}
    measure_sensitivity(str(model), two, out, resume=True, **more)
    measure_sensitivity(str(model), two, tmp_path / "whole", **more)
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    assert os.path.getsize(out) > 0


def test_an_existing_file_is_kept(
    measured: tuple[Path, Sensitivity], model: Path, tokens: Tensor, plan: Plan
) -> None:
    before = measured[0].read_bytes()
    with pytest.raises(CheckpointError, match="already exists; go on with --resume"):
        measure_sensitivity(model, SCOPE, measured[0], plan=plan, calibration=tokens)
    assert measured[0].read_bytes() == before


@pytest.mark.parametrize("what", ["formats", "text", "plan", "model"])
def test_resume_with_another(
    measured: tuple[Path, Sensitivity],
    model: Path,
    tokens: Tensor,
    plan: Plan,
    tmp_path: Path,
    what: str,
) -> None:
    path = tmp_path / "s.jsonl"
    data = measured[0].read_bytes()
    path.write_bytes(data)
    scope = Scope(formats=("int2-g64",)) if what == "formats" else SCOPE
    ids = tokens.flip(0) if what == "text" else tokens
    if what == "plan":
        plan = plan.model_copy(update={"name": "other"})
    if what == "model":
        other = tmp_path / "other"
        other.mkdir()
        for file in model.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        model = other
    names = {
        "formats": r"modules\.\S+\.formats(\[0\] '|: ).* now ",
        "text": r"calibration\.sha256 '",
        "plan": r"plan\.name '\w+', now 'other'",
        "model": r"source\.reference '.*source\.sha256 '",
    }
    with pytest.raises(CheckpointError, match=rf"was measured otherwise \(.*{names[what]}"):
        resume(path, model, ids, plan, scope)
    assert path.read_bytes() == data


def test_a_line_of_something_else(measured: tuple[Path, Sensitivity], tmp_path: Path) -> None:
    lines = measured[0].read_text().splitlines(keepends=True)
    path = tmp_path / "s.jsonl"
    path.write_text("".join([*lines[:3], '{"module": 1}\n', *lines[4:]]))
    with pytest.raises(CheckpointError, match=r"s\.jsonl:4: no line of a sensitivity file"):
        load(path)


@pytest.mark.parametrize("text", ["", "{"])
def test_an_empty_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.jsonl").write_text(text)
    with pytest.raises(PlanError, match="holds no measurement"):
        load(tmp_path / "s.jsonl")


def test_values_come_back_as_they_were(measured: tuple[Path, Sensitivity]) -> None:
    again = load(measured[0])
    assert again == measured[1]
    assert all(torch.isfinite(torch.tensor(line.kl_nats)) for line in again.lines.values())


def test_blank_lines_say_nothing(
    measured: tuple[Path, Sensitivity], model: Path, tokens: Tensor, plan: Plan, tmp_path: Path
) -> None:
    path, whole = tmp_path / "s.jsonl", measured[0].read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"\n" + b"".join(lines[:20]) + b"  \r\n" + b"".join(lines[20:]) + b"\n\n")
    assert load(path) == load(measured[0])
    before = path.read_bytes()
    resume(path, model, tokens, plan)
    assert path.read_bytes() == before
