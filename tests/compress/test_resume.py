"""A run that is killed and resumed gives the same bytes as one that never stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.checkpoints.packed.read import open_packed
from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import Plan
from tercet.errors import CheckpointError

LAYERS = 6
RULES = [
    {"match": "*embed_tokens", "format": "int4-g64", "algorithm": "rtn"},
    {"match": "*.q_proj", "format": "int4-g64", "algorithm": "awq"},
    {"match": "*.k_proj", "format": "int8-g64", "algorithm": "smoothquant"},
    {"match": "*.down_proj", "format": "int4-g64", "algorithm": "hadamard"},
    {"match": "*", "format": "nonary-g64", "algorithm": "gptq"},
]
COMMAND = "from tercet.cli.main import main; main()"
HANGS_BEFORE_NOTE_3 = """
import time
from tercet.checkpoints.packed import write as packed_write
write = packed_write.write_atomic
def hang(path, content):
    if path.name == "unit-00003.json":
        time.sleep(3600)
    write(path, content)
packed_write.write_atomic = hang
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    directory = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def tokens(seed: int = 1) -> Tensor:
    return torch.randint(3, 128, (16, 32), generator=torch.Generator().manual_seed(seed))


def plan(**changes: object) -> Plan:
    return Plan.model_validate({"name": "small", "rules": RULES, **changes})


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


class Stopped(Exception):
    """Stands for whatever ends a run."""


def stop_at(unit: int) -> Progress:
    def told(done: int, _total: int, _name: str) -> None:
        if done == unit:
            raise Stopped

    return Progress(unit=told)


@pytest.fixture(scope="module")
def unbroken(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "out"
    compress(model, plan(), out, calibration=tokens())
    return out


def test_two_unbroken_runs_are_equal(model: Path, unbroken: Path, tmp_path: Path) -> None:
    compress(model, plan(), tmp_path / "again", calibration=tokens())
    assert contents(tmp_path / "again") == contents(unbroken)


@pytest.mark.parametrize("unit", [0, 1, 4, LAYERS + 1, LAYERS + 2])
def test_stopped_before_any_unit(model: Path, unbroken: Path, tmp_path: Path, unit: int) -> None:
    out = tmp_path / "out"
    with pytest.raises(Stopped):
        compress(model, plan(), out, calibration=tokens(), progress=stop_at(unit))
    assert not out.exists()
    notes = list((tmp_path / "out.partial" / "unfinished").glob("unit-*.json"))
    assert len(notes) == unit
    compress(model, plan(), out, calibration=tokens(), resume=True)
    assert contents(out) == contents(unbroken)
    assert not (tmp_path / "out.partial").exists()


def test_stopped_twice(model: Path, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for unit in (2, 4):
        with pytest.raises(Stopped):
            compress(
                model,
                plan(),
                out,
                calibration=tokens(),
                resume=unit > 2,
                progress=stop_at(unit),
            )
    compress(model, plan(), out, calibration=tokens(), resume=True)
    assert contents(out) == contents(unbroken)


def test_resumed_run_does_not_write_finished_units_again(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        compress(model, plan(), tmp_path / "out", calibration=tokens(), progress=stop_at(3))
    written = sorted((tmp_path / "out.partial").glob("*.safetensors"))
    before = {path.name: path.stat().st_mtime_ns for path in written}
    assert len(before) == 3
    compress(model, plan(), tmp_path / "out", calibration=tokens(), resume=True)
    after = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in before}
    assert after == before


def test_kill_in_the_middle_then_resume(model: Path, tmp_path: Path) -> None:
    """SIGKILL to the real command between the tensors of a unit and the note that counts it."""
    save_file({"input_ids": tokens()}, tmp_path / "ids.safetensors")
    (tmp_path / "gptq.yaml").write_text(
        "name: gptq\nrules:\n"
        "  - {match: '*embed_tokens', format: int4-g64, algorithm: rtn}\n"
        "  - {match: '*', format: ternary-g64, algorithm: gptq}\n"
    )
    partial = tmp_path / "out.partial"
    command = _command(model, tmp_path, "out")
    command[2] = HANGS_BEFORE_NOTE_3 + COMMAND
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not (partial / f"model-00004-of-{LAYERS + 2:05d}.safetensors").exists():
        assert killed.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    notes = sorted(path.name for path in (partial / "unfinished").glob("unit-*.json"))
    assert notes == [f"unit-0000{unit}.json" for unit in range(3)]

    subprocess.run([*_command(model, tmp_path, "out"), "--resume"], check=True, capture_output=True)
    whole = tmp_path / "unbroken"
    compress(model, tmp_path / "gptq.yaml", whole, calibration=tmp_path / "ids.safetensors")
    assert contents(tmp_path / "out") == contents(whole)
    open_packed(tmp_path / "out").verify()


def _command(model: Path, folder: Path, out: str) -> list[str]:
    return [
        *(sys.executable, "-c", COMMAND, "compress", str(model), "--out", str(folder / out)),
        *("--plan", str(folder / "gptq.yaml")),
        *("--calibration", str(folder / "ids.safetensors")),
    ]


@pytest.fixture
def stopped(model: Path, tmp_path: Path) -> Path:
    with pytest.raises(Stopped):
        compress(model, plan(), tmp_path / "out", calibration=tokens(), progress=stop_at(2))
    return tmp_path / "out"


def test_resume_with_another_plan(model: Path, stopped: Path) -> None:
    partial = contents(stopped.with_name("out.partial"))
    other = plan(rules=[*RULES[:-1], {**RULES[-1], "format": "ternary-g64"}])
    with pytest.raises(CheckpointError, match="the unfinished run has another plan"):
        compress(model, other, stopped, calibration=tokens(), resume=True)
    assert contents(stopped.with_name("out.partial")) == partial


def test_resume_with_other_calibration(model: Path, stopped: Path) -> None:
    with pytest.raises(CheckpointError, match="the unfinished run has another calibration"):
        compress(model, plan(), stopped, calibration=tokens(2), resume=True)


def test_resume_with_another_source(model: Path, stopped: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="the unfinished run has another source"):
        compress(other, plan(), stopped, calibration=tokens(), resume=True)


def test_unfinished_run_needs_a_word(model: Path, stopped: Path) -> None:
    partial = contents(stopped.with_name("out.partial"))
    with pytest.raises(CheckpointError, match=r"unfinished run lies here; go on with --resume"):
        compress(model, plan(), stopped, calibration=tokens())
    assert contents(stopped.with_name("out.partial")) == partial


def test_overwrite_starts_anew(model: Path, unbroken: Path, stopped: Path) -> None:
    compress(model, plan(), stopped, calibration=tokens(), overwrite=True)
    assert contents(stopped) == contents(unbroken)
    assert not stopped.with_name("out.partial").exists()
