"""tercet export --type: one GGUF type for all layers."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from typer.testing import CliRunner

from tercet.cli.main import app
from tercet.errors import UnsupportedError
from tercet.workflows.export.run import export


@pytest.fixture(scope="module")
def ternary(make: Any) -> Path:
    return make(layers="ternary-g256").directory


@pytest.mark.parametrize(
    ("wanted", "number", "bits"), [(None, 34, 1.6875), ("TQ2_0", 35, 2.0625), ("Q8_0", 8, 8.5)]
)
def test_all_layers_take_it(
    wanted: str | None, number: int, bits: float, ternary: Path, tmp_path: Path
) -> None:
    words = ["export", str(ternary), "--to", "gguf", "--out", str(tmp_path / "a.gguf"), "--json"]
    done = CliRunner().invoke(app, words + (["--type", wanted] if wanted else []))
    assert done.exit_code == 0, done.output
    told = {m["kind"]: m["bits_per_weight"] for m in json.loads(done.stdout)["modules"]}
    assert bits in told.values()
    held = {
        int(t.tensor_type) for t in GGUFReader(tmp_path / "a.gguf").tensors if len(t.shape) == 2
    }
    assert number in held
    assert held <= {number, 8}, "layers in one type, embedding in Q8_0"


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("gguf", "TQ3_0", "unknown GGUF type 'TQ3_0': did you mean"),
        ("gguf", "Q2_1", "unknown GGUF type 'Q2_1'"),
        ("bitnet", "TQ2_0", "'bitnet' has one type for each format.*several in gguf, gptq$"),
    ],
)
def test_what_is_none_is_refused(
    target: str, kind: str, message: str, ternary: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        export(ternary, target, tmp_path / "out", kind=kind)
    assert not list(tmp_path.iterdir())
