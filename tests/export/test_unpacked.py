"""What is not packed is read back and compared: one bit of a norm, a bias, a setting."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tercet
from tercet.checkpoints.packed.layout import MANIFEST_NAME
from tercet.checkpoints.seal import seal
from tercet.export.target import find_target
from tercet.export.unpacked import Comparable, compare_decoders
from tercet.workflows.export.run import export

FORMATS = {
    "gguf": "int4-g32",
    "compressed-tensors": "int4-g32",
    "huggingface": "nonary-g32",
    "bitnet": "ternary-tensor",
    "gptq": "int8-channel",
    "awq": "nonary-g32",
}
NORM = "model.layers.1.input_layernorm.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"


@pytest.fixture(params=FORMATS)
def target(request: pytest.FixtureRequest) -> Any:
    return find_target(request.param)


@pytest.fixture(scope="session")
def packed(make_case: Callable[..., Any]) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            kind = "qwen2" if name == "gguf" else "llama"
            rules = (
                {"match": "*embed_tokens", "keep": True},
                {"match": "*.layers.*", "format": FORMATS[name], "algorithm": "rtn"},
            )
            made[name] = make_case(kind, True, *rules).packed
        return made[name]

    return of


def damage(
    packed: Path, out: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> Path:
    """A copy of a checkpoint after `change` of its tensors and its config, sealed anew."""
    copytree(packed, out)
    (out / MANIFEST_NAME).unlink()
    config = json.loads((out / "config.json").read_text())
    for path in sorted(out.glob("*.safetensors")):
        tensors = load_file(path)
        change(tensors, config)
        save_file(tensors, path, {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    seal(out)
    return out


def test_nothing_differs_in_what_was_written(
    target: Any, packed: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = tercet.open_packed(packed(target.name))
    out = tmp_path / "model.gguf"
    target.write(checkpoint, out)
    assert isinstance(target, Comparable)
    assert list(target.differences(checkpoint, out)) == []


def test_a_norm_one_bit_off_is_told(
    target: Any, packed: Callable[[str], Path], tmp_path: Path
) -> None:
    def change(tensors: dict[str, Any], _: dict[str, Any]) -> None:
        if NORM in tensors:
            norm = tensors[NORM]
            norm[3] = torch.nextafter(norm[3], torch.tensor(9.0, dtype=norm.dtype))

    other = damage(packed(target.name), tmp_path / "other", change)
    target.write(tercet.open_packed(other), tmp_path / "model.gguf")
    found = target.differences(tercet.open_packed(packed(target.name)), tmp_path / "model.gguf")
    assert list(found) == [f"{NORM} differs in 1 of 64 values"]


def test_another_epsilon_is_told(
    target: Any, packed: Callable[[str], Path], tmp_path: Path
) -> None:
    def change(_: dict[str, Any], config: dict[str, Any]) -> None:
        config["rms_norm_eps"] = 3e-6

    other = damage(packed(target.name), tmp_path / "other", change)
    target.write(tercet.open_packed(other), tmp_path / "model.gguf")
    checkpoint = tercet.open_packed(packed(target.name))
    (found,) = target.differences(checkpoint, tmp_path / "model.gguf")
    assert "eps" in found


def test_a_bias_that_is_off_is_told(packed: Callable[[str], Path], tmp_path: Path) -> None:
    def change(tensors: dict[str, Any], _: dict[str, Any]) -> None:
        if BIAS in tensors:
            tensors[BIAS] *= -1

    target: Any = find_target("gguf")
    other = damage(packed("gguf"), tmp_path / "other", change)
    target.write(tercet.open_packed(other), tmp_path / "model.gguf")
    (found,) = target.differences(tercet.open_packed(packed("gguf")), tmp_path / "model.gguf")
    assert found.startswith(BIAS)


def test_another_base_of_rotary_frequencies_is_told(packed: Callable[[str], Path]) -> None:
    config = dict(tercet.open_packed(packed("gguf")).config)
    assert list(compare_decoders(config, config)) == []
    other = {**config, "rope_theta": 20000.0}
    other.pop("rope_parameters", None)
    assert list(compare_decoders(config, other)) == ["rotary frequencies differ"]


def test_a_verified_export_with_a_scaled_norm_is_red(
    packed: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = find_target("compressed-tensors")
    real = type(target).write

    def scaled(self: Any, checkpoint: Any, out: Path) -> None:
        def change(tensors: dict[str, Any], _: dict[str, Any]) -> None:
            if NORM in tensors:
                tensors[NORM] *= 1.03

        other = damage(checkpoint.directory, tmp_path / "scaled", change)
        real(self, tercet.open_packed(other), out)

    monkeypatch.setattr(type(target), "write", scaled)
    report = export(packed("compressed-tensors"), "compressed-tensors", tmp_path / "out", True)
    assert report.differences == (f"{NORM} differs in 64 of 64 values",)
    assert not report.passed
