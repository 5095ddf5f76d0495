"""`tercet sensitivity` and `tercet allocate`: from a model to a plan, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tercet.cli.allocation.allocate import parse_bytes
from tercet.errors import PlanError

Run = Callable[..., Any]
FORMATS = "ternary-g64,int3-g64,int4-g64"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    ids = torch.randint(3, 128, (8, 16), generator=torch.Generator().manual_seed(1))
    save_file({"input_ids": ids}, tmp_path / "rows.safetensors")
    return tmp_path / "rows.safetensors"


@pytest.fixture
def sensitivity(tercet: Run, model: Path, rows: Path, tmp_path: Path) -> Run:
    def run(*more: object) -> Any:
        out = ("--out", tmp_path / "s.jsonl", "--calibration", rows, "--windows", 2)
        return tercet("sensitivity", model, "--device", "cpu", *out, *more)

    return run


def test_from_a_model_to_a_checkpoint(
    sensitivity: Run, tercet: Run, model: Path, rows: Path, tmp_path: Path
) -> None:
    found = json.loads(sensitivity("--formats", FORMATS, "--json").out)
    assert found["measurements"] == 1 + 3 * 14
    assert found["spearman_pairs"] == 3 * 14
    plan, out = tmp_path / "p.yaml", tmp_path / "packed"
    words = ("allocate", tmp_path / "s.jsonl", "--bits", 3.0, "--out", plan, "--device", "cpu")
    more = ("--verify", "--calibration", rows, "--checkpoint", out, "--json")
    told = json.loads(tercet(*words, *more).out)
    assert told["bits_per_weight"] <= 3.0
    assert sum(told["modules"].values()) == 14
    verified = told["verified"]
    assert verified["checkpoint_bytes"] == told["checkpoint_bytes"]
    assert verified["windows"]["kl_nats"] > 0
    again = json.loads(tercet(*words[:4], "--out", tmp_path / "again.yaml", "--json").out)
    assert again["predicted_kl_nats"] == pytest.approx(verified["windows"]["kl_nats"])
    # held-out windows are others
    assert verified["held_out"]["kl_nats"] != verified["windows"]["kl_nats"]
    inspected = json.loads(tercet("inspect", out, "--json").out)
    assert inspected["size"]["body_bits_per_weight"] == pytest.approx(told["bits_per_weight"])
    counts = {form: inspected["formats"][form] for form in told["modules"]}
    assert counts == told["modules"]
    more = ("--calibration", rows, "--json")
    again = tercet("compress", model, "--plan", plan, "--out", tmp_path / "two", *more)
    assert json.loads(again.out)["size"]["disk_bytes"] == told["checkpoint_bytes"]
    assert json.loads(again.out)["idle_rules"] == []


def test_for_people(sensitivity: Run, tercet: Run, tmp_path: Path) -> None:
    done = sensitivity("--formats", FORMATS)
    assert "Spearman's rank correlation" in done.out
    done = tercet("allocate", tmp_path / "s.jsonl", "--bytes", "43KB", "--out", tmp_path / "p.yaml")
    assert "predicted KL" in done.out
    assert "modules: " in done.out
    text = (tmp_path / "p.yaml").read_text()
    assert text.startswith("# ")
    assert yaml.safe_load(text)["name"] == "p"


def test_another_model_is_not_verified(
    sensitivity: Run, tercet: Run, model: Path, rows: Path, tmp_path: Path
) -> None:
    sensitivity("--formats", "int3-g64,int4-g64")
    words = ("allocate", tmp_path / "s.jsonl", "--bits", 3.5, "--overwrite", "--verify")
    words = (*words, "--out", tmp_path / "p.yaml", "--device", "cpu")
    ids = load_file(rows)["input_ids"].flip(0)
    save_file({"input_ids": ids}, tmp_path / "other.safetensors")
    error = tercet(*words, "--calibration", tmp_path / "other.safetensors").error
    assert "not the one that sensitivity was measured with" in error
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] *= 2
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    error = tercet(*words, "--calibration", rows).error
    assert "its weights are not those that sensitivity was measured of" in error
    assert (
        "was measured otherwise (source.sha256 '"
        in sensitivity("--formats", "int3-g64,int4-g64", "--resume").error
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--formats", "ternry-g64"), "unknown format 'ternry-g64': did you mean 'ternary'"),
        (("--formats", ","), "no format to measure"),
        (("--formats", "int4-g64,int4"), "format int4-g64 is named twice"),
        (("--formats", "int4", "--plan", "intt4"), "unknown format 'intt4'"),
        (("--formats", "int4", "--windows", 0), "at least 1 window"),
        (("--formats", "int4", "--windows", 4), "leave none to calibrate with"),
        (("--formats", "int4", "--device", "tpu"), "allowed are cpu, cuda and cuda:N"),
        (("--formats", "int4", "--proxy", "--in-context"), "leave out --in-context"),
    ],
)
def test_bad_question(sensitivity: Run, tmp_path: Path, more: Any, message: str) -> None:
    assert message in sensitivity(*more).error
    assert not (tmp_path / "s.jsonl").exists()


def test_bad_budget(sensitivity: Run, tercet: Run, tmp_path: Path) -> None:
    file, plan = tmp_path / "s.jsonl", tmp_path / "p.yaml"
    assert "no such file" in tercet("allocate", file, "--bits", 3, "--out", plan).error
    file.write_text("")
    assert "holds no measurement" in tercet("allocate", file, "--bits", 3, "--out", plan).error
    sensitivity("--formats", "int3-g64,int4-g64", "--overwrite")
    for words, message in (
        ((), "give one of --bytes 60MB, --bits 2.6 and --latency 1.2ms"),
        (
            ("--bits", 3, "--bytes", "9MB"),
            "give one of --bytes 60MB, --bits 2.6 and --latency 1.2ms",
        ),
        (("--bytes", "big"), "give a number of bytes, or 60MB"),
        (("--bits", 2), "2 bits per weight cannot be met by the measured formats: the smallest"),
        (("--bytes", "9kB"), "9,000 bytes cannot be met"),
        (("--bits", "inf"), "a budget must be a number above 0"),
        (("--bits", 3.5, "--checkpoint", "a"), "are about --verify"),
    ):
        assert message in tercet("allocate", file, *words, "--out", plan).error
        assert not plan.exists()
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "mine").touch()
    words = ("allocate", file, "--bits", 3.5, "--out")
    error = tercet(*words, plan, "--verify", "--checkpoint", packed).error
    assert "packed: already exists; choose another --checkpoint" in error
    assert not plan.exists()
    before = file.read_bytes()
    assert "is read, so it is not written to" in tercet(*words, file, "--overwrite").error
    assert file.read_bytes() == before
    plan.write_text("mine")
    assert "already exists" in tercet("allocate", file, "--bits", 3.5, "--out", plan).error
    assert "is no plan" in tercet(*words, plan, "--overwrite").error
    assert plan.read_text() == "mine"


def test_nothing_but_a_sensitivity_file_is_replaced(
    sensitivity: Run, tercet: Run, model: Path, rows: Path, tmp_path: Path
) -> None:
    words = ("sensitivity", model, "--device", "cpu", "--windows", 2, "--formats", "int4-g64")
    for path in (rows, model / "config.json"):
        before = path.read_bytes()
        more = ("--calibration", rows, "--out", path, "--overwrite")
        assert "is no sensitivity file" in tercet(*words, *more).error
        assert path.read_bytes() == before
    # one that a kill has left empty, or of another version
    file = tmp_path / "s.jsonl"
    for content in ("", '{"version": 0, "source": "model"}\n'):
        file.write_text(content)
        assert sensitivity("--formats", "int4-g64", "--overwrite").code == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("60MB", 60_000_000), ("1.5 GB", 1_500_000_000), ("57MiB", 57 << 20), ("12345", 12345)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "60XB", "1e9"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(PlanError, match="give a number of bytes"):
        parse_bytes(text)


def test_by_latency(sensitivity: Run, tercet: Run, tmp_path: Path) -> None:
    sensitivity("--formats", "ternary-g64,int4-g64")
    words = ("allocate", tmp_path / "s.jsonl", "--latency", "cpu:100s", "--out")
    told = json.loads(tercet(*words, tmp_path / "p.yaml", "--json").out)
    # any time is short enough: the best formats there are
    assert told["modules"] == {"int4-g64": 14}
    assert told["latency"]["device"].startswith("cpu")
    assert 0 < told["latency"]["measured_us"] < 100e6
    assert json.loads((tmp_path / "s.latency-cpu.json").read_text())["groups"]
    assert " ms a token measured on cpu" in tercet(*words, tmp_path / "q.yaml").out
    assert " ms a token measured on cpu" in (tmp_path / "q.yaml").read_text()
    words = ("allocate", tmp_path / "s.jsonl", "--latency", "cpu:0.0001us", "--out")
    assert "the fastest choice of the measured" in tercet(*words, tmp_path / "r.yaml").error
    assert not (tmp_path / "r.yaml").exists()
