"""bitnet: bit-equal, and in transformers off by the rounding of inputs and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tercet
from tercet.checkpoints.packed.origin import ORIGIN_NAME
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.bitnet import TARGET, pack_rows
from tercet.formats import encode, parse_scheme
from tercet.workflows.export.run import export
from tercet.workflows.import_checkpoint import import_checkpoint

EMBEDDING = {"match": "model.embed_tokens", "format": "int8-g32", "algorithm": "rtn"}
TERNARY = {"match": "*.layers.*", "format": "ternary-tensor", "algorithm": "rtn"}
TOKENS = list(range(3, 19))

# transformers compiles its bitnet layers, and torch's compiler uses what torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


@pytest.mark.parametrize("shape", [(4, 1), (8, 5), (64, 33)])
def test_rows_are_packed_as_transformers_packs_them(shape: tuple[int, int]) -> None:
    from transformers.integrations.bitnet import pack_weights

    generator = torch.Generator().manual_seed(3)
    values = torch.randint(-1, 2, shape, generator=generator).float()
    scheme = parse_scheme("ternary-tensor")
    packed = encode(values, scheme, torch.ones(1, 1))
    assert torch.equal(pack_rows(packed), pack_weights(values.clone()))


@pytest.mark.parametrize("rules", [[EMBEDDING, TERNARY], [TERNARY]])
def test_verified_in_transformers(
    rules: list[dict[str, Any]], make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = make_case("llama", True, *rules).packed
    report = export(packed, "bitnet", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert all(module.bit_equal for module in report.modules)
    assert report.main_module.kind == "bitnet ternary tensor"
    assert report.main_module.bits_per_weight == pytest.approx(2, abs=0.02)
    client = report.client
    assert client is not None
    assert client.twin_error < 1e-5
    assert client.error > 1e-4
    # once our own inputs are rounded in the same way, almost nothing is left
    assert client.rounded_error is not None
    assert client.rounded_error < client.error / 5


def test_a_kept_projection_and_an_own_head_stay_plain(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    keep = {"match": "*.o_proj", "keep": True}
    packed = make_case("llama", False, EMBEDDING, keep, TERNARY).packed
    report = export(packed, "bitnet", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client


@pytest.fixture
def exported(make_case: Callable[..., Any], tmp_path: Path) -> tuple[Path, Path]:
    """A packed checkpoint and its export."""
    packed = make_case("llama", True, EMBEDDING, TERNARY).packed
    TARGET.write(tercet.open_packed(packed), tmp_path / "out")
    return packed, tmp_path / "out"


def test_it_comes_back_byte_for_byte(exported: tuple[Path, Path], tmp_path: Path) -> None:
    packed, out = exported
    import_checkpoint(out, tmp_path / "back")
    names = sorted(path.name for path in packed.iterdir())
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == names
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (packed / name).read_bytes(), name


def test_without_its_origin_it_is_a_foreign_checkpoint(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    packed, out = exported
    (out / ORIGIN_NAME).unlink()
    import_checkpoint(out, tmp_path / "back")
    found, before = tercet.open_packed(tmp_path / "back"), tercet.open_packed(packed)
    assert set(before.modules) - set(found.modules) == {"model.embed_tokens"}
    for name, entry in found.modules.items():
        assert (entry.format, entry.activation) == ("ternary-tensor-float32", "int8_token")
        assert torch.equal(
            found.read_packed(name).dequantize(), before.read_packed(name).dequantize()
        )


@pytest.mark.parametrize("damage", ["cut", "flipped", "no ternary number"])
def test_a_damaged_export_is_refused(
    damage: str, exported: tuple[Path, Path], tmp_path: Path
) -> None:
    path = exported[1] / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
        message = r"model\.safetensors.*truncated"
    else:
        # 0b01 and 0b10 are numbers, 0b11 is none
        first = tensors[f"{name}.weight"][0, :1]
        first.fill_(0b10010110 if int(first) != 0b10010110 else 0b01010110)
        message = "its weights are not those that were exported"
        if damage == "no ternary number":
            first.fill_(0b11)
            message = rf"{name}: the weight at \[0, 0\] is 2, which is not ternary"
        save_file(tensors, path)
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(exported[1], tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("kind", "rules", "fragments"),
    [
        ("llama", [{**TERNARY, "format": "ternary-g32"}], ["one scale a tensor", "ternary-tensor"]),
        ("llama", [{**TERNARY, "format": "nonary-tensor"}], ["ternary weights only"]),
        ("llama", [{**TERNARY, "algorithm": "hadamard"}], ["Hadamard", "huggingface"]),
        ("qwen2", [TERNARY], ["bias", "compressed-tensors"]),
    ],
)
def test_refusals_name_the_alternative(
    kind: str,
    rules: list[dict[str, Any]],
    fragments: list[str],
    make_case: Callable[..., Any],
    tmp_path: Path,
) -> None:
    packed = tercet.open_packed(make_case(kind, True, *rules).packed)
    with pytest.raises(UnsupportedError) as caught:
        TARGET.write(packed, tmp_path / "out")
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert list(tmp_path.iterdir()) == []
