import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tercet.checkpoints.packed.layout import (
    INDEX_NAME,
    MANIFEST_NAME,
    ModuleInfo,
    PackedModule,
    SourceInfo,
)
from tercet.checkpoints.packed.read import is_packed, open_packed
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity, library_versions
from tercet.checkpoints.seal import SEAL_NAME
from tercet.errors import CheckpointError
from tercet.evaluate.size import measure_size
from tercet.formats import PackedTensor, encode, fit, parse_scheme

FORMATS = {"up": "int4-g64", "down": "nonary-g64", "head": "ternary-g64"}
SHAPE = (24, 64)
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def packed(name: str) -> PackedTensor:
    torch.manual_seed(len(name))
    weight, scheme = torch.randn(SHAPE), parse_scheme(FORMATS[name])
    return encode(weight, scheme, *fit(weight, scheme, "absmax"))


def plain() -> dict[str, Tensor]:
    return {"norm.weight": torch.arange(64.0).to(torch.bfloat16), "up.bias": torch.ones(24)}


def identity(units: int = 2) -> RunIdentity:
    return RunIdentity(
        source=SourceInfo(reference="m", sha256="0" * 64, size_bytes=1, parameters=1),
        calibration=None,
        plan={"name": "p"},
        versions=library_versions(),
        units=units,
    )


def write_unit(writer: PackedWriter, unit: int, names: list[str], kept: dict[str, Tensor]) -> None:
    tensors = dict(kept)
    for name in names:
        tensors |= {f"{name}.weight_{part}": t for part, t in packed(name).parts().items()}
    scaled = {"head"} & set(names)
    tensors |= {f"{name}.input_scale": torch.full((64,), 0.5).half() for name in scaled}
    entries = {
        name: PackedModule(
            format=FORMATS[name],
            shape=SHAPE,
            hadamard=32 if name == "up" else None,
            input_scale=name in scaled,
        )
        for name in names
    }
    infos = {
        name: ModuleInfo(format=FORMATS[name], algorithm="rtn", options={}, relative_error=0.1)
        for name in names
    }
    writer.write(unit, tensors, entries, infos)


def write(out: Path, **options: Any) -> Path:
    writer = PackedWriter(out, identity(), **options)
    write_unit(writer, 0, ["up", "down"], plain())
    write_unit(writer, 1, ["head"], {})
    writer.finish(CONFIG)
    return out


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write(tmp_path / "out")


def edit_json(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_round_trip(directory: Path) -> None:
    checkpoint = open_packed(directory)
    assert set(checkpoint.modules) == {"up", "down", "head"}
    for name in FORMATS:
        for part, tensor in packed(name).parts().items():
            assert torch.equal(checkpoint.read_packed(name).parts()[part], tensor)
    assert sorted(checkpoint.names()) == sorted(plain())
    for name, tensor in plain().items():
        assert torch.equal(checkpoint.tensor(name), tensor)
        assert checkpoint.tensor(name).dtype == tensor.dtype
    assert torch.equal(checkpoint.input_scale("head"), torch.full((64,), 0.5))
    assert checkpoint.modules["up"].hadamard == 32
    assert checkpoint.parameters == 3 * 24 * 64 + 64 + 24
    checkpoint.verify()
    assert sorted(path.name for path in directory.iterdir()) == [
        SEAL_NAME,
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX_NAME,
        MANIFEST_NAME,
    ]


def test_every_flipped_bit_of_a_header_is_found(directory: Path) -> None:
    path = directory / "model-00001-of-00002.safetensors"
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    for position in range(end):
        for bit in range(8) if position < 8 else (position % 8,):
            data = bytearray(whole)
            data[position] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(CheckpointError, match="the header does not match its hash"):
                open_packed(directory)
    path.write_bytes(whole)
    open_packed(directory).verify()


def test_flipped_bits_of_the_quantization_section(directory: Path) -> None:
    """Each is refused, or leaves the parsed section as it was (a blank that became another)."""
    path = directory / "config.json"
    whole = path.read_bytes()
    start = whole.index(b'"quantization_config"')
    before = open_packed(directory).quantization
    refused = 0
    for position in range(start, len(whole)):
        for bit in range(position % 3, 8, 3):
            data = bytearray(whole)
            data[position] ^= 1 << bit
            path.write_bytes(data)
            try:
                assert open_packed(directory).quantization == before, data[start:]
            except CheckpointError:
                refused += 1
    assert refused > 1000


def test_format_of_the_same_layout_is_refused(directory: Path) -> None:
    modules = ("quantization_config", "modules")
    edit_json(
        directory / "config.json",
        lambda c: c[modules[0]][modules[1]]["up"].update(format="fp4_e2m1-g64"),
    )
    with pytest.raises(CheckpointError, match=r"up: config\.json says format fp4_e2m1-g64"):
        open_packed(directory)


@pytest.mark.parametrize("hadamard", [0, 3, 48, 128])
def test_hadamard_that_fits_no_columns(directory: Path, hadamard: int) -> None:
    edit_json(
        directory / "config.json",
        lambda c: c["quantization_config"]["modules"]["up"].update(hadamard=hadamard),
    )
    with pytest.raises(CheckpointError, match=f"hadamard {hadamard} is no power of two"):
        open_packed(directory)


@pytest.mark.parametrize("content", ["[1]", "null", '{"quantization_config": null}', "{"])
def test_config_of_another_kind(directory: Path, content: str) -> None:
    (directory / "config.json").write_text(content)
    assert not is_packed(directory)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_packed(directory)


def rewrite(directory: Path, change: Any) -> None:
    """Changes the tensors of the second file as another program would, leaving no manifest."""
    path = directory / "model-00002-of-00002.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    (directory / MANIFEST_NAME).unlink()


def test_missing_tensor(directory: Path) -> None:
    rewrite(directory, lambda tensors: tensors.pop("head.weight_scale"))
    (directory / INDEX_NAME).write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    )
    with pytest.raises(CheckpointError, match="does not match the files"):
        open_packed(directory)
    files = {f"model-0000{i}-of-00002.safetensors": load_file for i in (1, 2)}
    weight_map = {name: file for file, load in files.items() for name in load(directory / file)}
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"tensor 'head\.weight_scale' is missing"):
        open_packed(directory)


@pytest.mark.parametrize("wrong", [torch.zeros(24, 2).half(), torch.zeros(24, 1).double()])
def test_packed_tensor_of_wrong_shape_or_dtype(directory: Path, wrong: Tensor) -> None:
    rewrite(directory, lambda tensors: tensors.update({"head.weight_scale": wrong}))
    with pytest.raises(CheckpointError, match=r"head\.weight_scale: config\.json calls for"):
        open_packed(directory)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_scale_that_is_no_scale(directory: Path, value: float) -> None:
    rewrite(directory, lambda tensors: tensors["head.weight_scale"].view(-1)[3:4].fill_(value))
    with pytest.raises(CheckpointError, match=r"head\.scale: 1 values not finite or negative"):
        open_packed(directory).read_packed("head")


def test_without_manifest_sizes_are_the_same(directory: Path) -> None:
    before = measure_size(open_packed(directory))
    notes = [directory / MANIFEST_NAME, directory / SEAL_NAME]
    manifest = sum(path.stat().st_size for path in notes)
    for path in notes:
        path.unlink()
    checkpoint = open_packed(directory)
    assert checkpoint.manifest is None
    after = measure_size(checkpoint)
    assert after.disk_bytes == before.disk_bytes
    assert after.bits_per_weight == before.bits_per_weight
    assert after.directory_bytes == before.directory_bytes - manifest
    checkpoint.verify()


def test_verify_finds_every_kind_of_flipped_data_byte(directory: Path) -> None:
    path = directory / "model-00001-of-00002.safetensors"
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for position in range(start, len(whole), 97):
        data = bytearray(whole)
        data[position] ^= 1
        path.write_bytes(data)
        checkpoint = open_packed(directory)
        with pytest.raises(CheckpointError, match="sha256"):
            checkpoint.verify()


def test_truncated_and_missing_file(directory: Path) -> None:
    path = directory / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="bytes, the manifest says"):
        open_packed(directory)
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        open_packed(directory)


def test_overwrite_leaves_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old")
    # of a checkpoint, which alone may be replaced
    (out / MANIFEST_NAME).write_text("{}")
    with pytest.raises(CheckpointError, match="already exists"):
        PackedWriter(out, identity())
    writer = PackedWriter(out, identity(), overwrite=True)
    write_unit(writer, 0, ["up", "down"], plain())
    assert sorted(path.name for path in out.iterdir()) == ["old.txt", MANIFEST_NAME]
    write_unit(writer, 1, ["head"], {})
    writer.finish(CONFIG)
    assert not (out / "old.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    open_packed(out).verify()


def test_writing_twice_gives_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again")
    for path in directory.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()
