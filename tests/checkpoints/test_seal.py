"""No flipped byte of a checkpoint goes unseen, by whichever door it comes in."""

import random
import subprocess
from pathlib import Path
from shutil import copytree

import pytest
import torch

from tercet.checkpoints.packed.layout import (
    MANIFEST_NAME,
    ModuleInfo,
    PackedModule,
    SourceInfo,
)
from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity
from tercet.checkpoints.seal import SEAL_NAME, Verification, read_seal, seal, verified
from tercet.errors import CheckpointError
from tercet.formats import encode, fit, parse_scheme

FLIPS = 400
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_checkpoint(directory: Path) -> Path:
    identity = RunIdentity(
        source=SourceInfo(reference="none", sha256="0" * 64, size_bytes=1, parameters=1),
        calibration=None,
        plan={"name": "none"},
        versions={},
        units=2,
    )
    writer = PackedWriter(directory, identity)
    for unit, name in enumerate(("first", "second")):
        weight = torch.randn(20, 64, generator=torch.Generator().manual_seed(unit))
        scheme = parse_scheme("int4-g32")
        packed = encode(weight, scheme, *fit(weight, scheme, "absmax"))
        tensors = {f"{name}.weight_{part}": tensor for part, tensor in packed.parts().items()}
        tensors[f"{name}.norm"] = torch.ones(64)
        entry = PackedModule(format=scheme.name, shape=(20, 64))
        info = ModuleInfo(format=scheme.name, algorithm="rtn", options={}, relative_error=0.1)
        writer.write(unit, tensors, {name: entry}, {name: info})
    for name in FILES:
        (writer.partial / name).write_text(f'{{"of": "{name}", "é": 1}}\n')
    writer.finish({"architectures": ["None"]})
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("seal") / "packed")


def check(directory: Path) -> None:
    with verified(directory):
        open_packed(directory)


def refuses(directory: Path) -> bool:
    try:
        check(directory)
    except CheckpointError:
        return True
    return False


def test_no_flipped_bit_of_any_file_goes_unseen(whole: Path, tmp_path: Path, seed: int) -> None:
    directory = copytree(whole, tmp_path / "copy")
    check(directory)
    draw, files = random.Random(seed), sorted(path.name for path in directory.iterdir())
    for flip in range(FLIPS):
        path = directory / files[flip % len(files)]
        before = path.read_bytes()
        data = bytearray(before)
        at, bit = draw.randrange(len(data)), draw.randrange(8)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        assert refuses(directory), f"seed {seed}: bit {bit} of byte {at} of {path.name} unseen"
        path.write_bytes(before)
    check(directory)


def test_each_file_is_missed(whole: Path, tmp_path: Path) -> None:
    directory = copytree(whole, tmp_path / "copy")
    assert set(read_seal(directory)) == {path.name for path in directory.iterdir()} - {SEAL_NAME}
    for name in read_seal(directory):
        aside = (directory / name).rename(tmp_path / "aside")
        with pytest.raises(CheckpointError, match=rf"{name}: (missing|No such file)"):
            check(directory)
        aside.rename(directory / name)
    check(directory)


def test_a_line_that_ends_in_another_way_is_no_seal(whole: Path, tmp_path: Path) -> None:
    directory = copytree(whole, tmp_path / "copy")
    path = directory / SEAL_NAME
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(CheckpointError, match="SHA256SUMS: not a list of sha256 sums"):
        check(directory)


def test_the_usual_tool_reads_the_seal(whole: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--strict", "--check", SEAL_NAME],
        cwd=whole,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK\n") == len(read_seal(whole)) == 2 + 3 + len(FILES)


def test_without_a_seal_the_manifest_speaks_for_the_weights(whole: Path, tmp_path: Path) -> None:
    directory = copytree(whole, tmp_path / "copy")
    (directory / SEAL_NAME).unlink()
    check(directory)
    (directory / "tokenizer.json").write_text("{}")
    check(directory)
    path = directory / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"00002\.safetensors: sha256 .* sealed as"):
        check(directory)
    (directory / MANIFEST_NAME).unlink()
    assert read_seal(directory) == {}


def test_the_error_of_the_block_comes_first(whole: Path, tmp_path: Path) -> None:
    directory = copytree(whole, tmp_path / "copy")
    path = directory / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="of the block"), verified(directory):
        raise ValueError("of the block")


def test_nothing_is_checked_when_not_wanted(whole: Path, tmp_path: Path) -> None:
    directory = copytree(whole, tmp_path / "copy")
    (directory / "tokenizer.json").write_text("{}")
    with verified(directory, False):
        open_packed(directory)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: sha256"):
        Verification(directory)
    seal(directory)
    check(directory)
