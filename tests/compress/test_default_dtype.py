"""What is computed does not follow torch's default dtype, which a program may have set."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoders import contents, plan, save, tokens

from tercet.compress.pipeline import compress
from tercet.compress.training.settings import TrainingSettings
from tercet.runtime import load
from tercet.workflows.training.from_source import distill

FORMATS = {
    "rtn": "int4-g16-asym",
    "gptq": "int3-g16",
    "awq": "int4-g16",
    "hadamard": "nonary-g16",
    "smoothquant": "int8-channel",
    "trit_planes": "ternary-g16",
    "hqq": "int4-g16-hqq",
}


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> Generator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("algorithm", FORMATS)
def test_compression(algorithm: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")
    rules = plan(FORMATS[algorithm], None, algorithm=algorithm)
    compress(model, rules, tmp_path / "expected", calibration=tokens(8))
    expected = load(tmp_path / "expected").logits(tokens(2))
    torch.set_default_dtype(dtype)
    compress(model, rules, tmp_path / "found", calibration=tokens(8))
    assert contents(tmp_path / "found") == contents(tmp_path / "expected")
    assert torch.equal(load(tmp_path / "found").logits(tokens(2)), expected)


def test_blockwise(dtype: torch.dtype, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")
    rules = plan("ternary-g16", {"epochs": 2, "batch": 4})
    compress(model, rules, tmp_path / "expected", calibration=tokens(8))
    torch.set_default_dtype(dtype)
    compress(model, rules, tmp_path / "found", calibration=tokens(8))
    assert contents(tmp_path / "found") == contents(tmp_path / "expected")


def test_distillation(dtype: torch.dtype, tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model")
    rules = plan("ternary-g16", None, algorithm="qat")
    given: dict[str, Any] = {
        "data": "teacher:200",
        "settings": TrainingSettings(steps=2, sequences=2, length=16),
    }
    distill(model, rules, tmp_path / "expected", **given)
    torch.set_default_dtype(dtype)
    distill(model, rules, tmp_path / "found", **given)
    weights = [
        {name: data for name, data in contents(tmp_path / out).items() if "safetensors" in name}
        for out in ("found", "expected")
    ]
    assert weights[0] == weights[1]
