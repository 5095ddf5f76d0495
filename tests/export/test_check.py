"""No flipped bit of an export goes unseen by `tercet export --check`."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tercet.cli.main import app
from tercet.errors import CheckpointError
from tercet.workflows.export.check import check_export
from tercet.workflows.export.run import export

FLIPS = 120
RULES = {
    "compressed-tensors": "nonary-g32",
    "bitnet": "ternary-tensor-float32",
    "huggingface": "int3-g32",
    "gguf": "int4-g32",
    "onnx": "int4-g32",
    "gptq": "int3-g32",
    "awq": "int4-g32-asym",
}


def write_export(make_case: Callable[..., Any], folder: Path, target: str) -> Path:
    rule: dict[str, Any] = {"match": "*.layers.*", "format": RULES[target], "algorithm": "rtn"}
    packed = make_case("llama", True, rule).packed
    out = folder / ("out.gguf" if target == "gguf" else "out")
    export(packed, target, out)
    return out


def refuses(path: Path) -> bool:
    try:
        check_export(path)
    except CheckpointError:
        return True
    return False


@pytest.mark.parametrize("target", RULES)
def test_no_flipped_bit_goes_unseen(
    target: str, seed: int, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    out = write_export(make_case, tmp_path, target)
    assert check_export(out).startswith("as it was written, by ")
    files = [out] if out.is_file() else sorted(path for path in out.iterdir() if path.is_file())
    draw = random.Random(seed)
    for flip in range(FLIPS):
        path = files[flip % len(files)]
        before = path.read_bytes()
        data = bytearray(before)
        # half of the flips hit the first bytes, where headers are: weights are most of a file
        at = draw.randrange(len(data) if flip % 2 else min(len(data), 4096))
        bit = draw.randrange(8)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        assert refuses(out), f"seed {seed}: bit {bit} of byte {at} of {path.name} unseen"
        path.write_bytes(before)
    assert not refuses(out)


def test_the_command(make_case: Callable[..., Any], tmp_path: Path) -> None:
    out = write_export(make_case, tmp_path, "compressed-tensors")
    found = CliRunner().invoke(app, ["export", "--check", str(out)], catch_exceptions=False)
    assert (found.exit_code, found.output) == (0, f"{out}: as it was written, by SHA256SUMS\n")
    words = ["export", "--check", str(out), "--json"]
    found = CliRunner().invoke(app, words, catch_exceptions=False)
    told = {"export": str(out), "found": "as it was written, by SHA256SUMS"}
    assert json.loads(found.stdout) == told
    (out / "model-2.safetensors").touch()
    with pytest.raises(
        CheckpointError, match=r"holds 'model-2.safetensors', which was not written"
    ):
        check_export(out)
    (out / "model-2.safetensors").unlink()
    (out / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json: sha256"):
        CliRunner().invoke(app, ["export", "--check", str(out)], catch_exceptions=False)


def test_what_holds_no_hashes_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing to compare it with"):
        check_export(tmp_path)


def test_codes_that_were_changed_are_not_exported(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    rule = {"match": "*.layers.*", "format": "int4-g32", "algorithm": "rtn"}
    packed = make_case("llama", True, rule).packed
    path = sorted(packed.glob("*.safetensors"))[1]
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"{path.name}: sha256 .* sealed as"):
        export(packed, "gguf", tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(before)
