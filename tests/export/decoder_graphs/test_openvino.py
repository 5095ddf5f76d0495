"""The openvino target on tiny models: weights bit by bit, the answers, the cache, refusals."""

import resource
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.openvino.client import MODEL_NAME, OpenvinoSession, read_back
from tercet.export.openvino.constants import Constants
from tercet.export.openvino.decoder import QUANTIZED_INPUTS
from tercet.export.openvino.target import TARGET
from tercet.export.target import find_target
from tercet.formats import fit, from_codes, parse_scheme
from tercet.formats.encode import encode

openvino = pytest.importorskip("openvino")

ARCHITECTURES = pytest.mark.parametrize(
    "case", ["llama", "mistral", "qwen2", "qwen3"], indirect=True
)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[Path, Path] = {}

    def export(case: Any) -> Path:
        checkpoint = case.checkpoint
        key = checkpoint.directory
        if key not in made:
            made[key] = tmp_path_factory.mktemp("openvino") / "out"
            TARGET.write(checkpoint, made[key])
        return made[key]

    return export


def test_it_is_found_by_name():
    assert find_target("openvino") is TARGET


@ARCHITECTURES
def test_every_packed_weight_reads_back_bit_by_bit(case, exported):
    found = list(TARGET.dequantize(exported(case)))
    assert sorted(name for name, _ in found) == sorted(case.checkpoint.modules)
    for name, weight in found:
        assert torch.equal(weight, case.checkpoint.read_packed(name).dequantize()), name


@ARCHITECTURES
def test_logits_are_those_of_the_decoder(case, exported, tokens):
    expected = case.decoder.logits(torch.tensor([tokens]))[0]
    found = TARGET.logits(exported(case), tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@ARCHITECTURES
def test_openvinos_own_precision_changes_little(case, exported, tokens):
    expected = case.decoder.logits(torch.tensor([tokens]))[0]
    found = OpenvinoSession(openvino, exported(case), {}).logits(tokens)
    assert float((found - expected).norm() / expected.norm()) < 0.15


@pytest.mark.parametrize("case", ["llama"], indirect=True)
def test_inputs_of_u2_weights_are_not_quantized(case, exported, tmp_path):
    model = openvino.Core().read_model(exported(case) / MODEL_NAME)
    assert model.get_rt_info(QUANTIZED_INPUTS).astype(str) == "0"
    TARGET.write_twin(case.checkpoint, tmp_path / "twin")
    assert (
        not openvino.Core().read_model(tmp_path / "twin" / MODEL_NAME).has_rt_info(QUANTIZED_INPUTS)
    )


@ARCHITECTURES
def test_step_by_step_is_the_same_as_at_once(case, exported, tokens):
    session = TARGET.session(exported(case))
    whole = session.logits(tokens)
    session.reset()
    parts = ([*tokens[:4]], *([token] for token in tokens[4:]))
    steps = [session.extend(torch.tensor([part]))[0] for part in parts]
    torch.testing.assert_close(torch.cat(steps), whole, rtol=1e-4, atol=1e-4)


@ARCHITECTURES
def test_greedy_text_is_that_of_the_decoder(case, exported, tokens):
    cache, given, expected = case.decoder.cache(), tokens, []
    for _ in range(12):
        scores = case.decoder.extend(torch.tensor([given]), cache)[0]
        expected.append(int(scores.argmax()))
        given = expected[-1:]
    assert TARGET.greedy(exported(case), tokens, 12) == expected


@ARCHITECTURES
def test_rows_padded_on_the_left_answer_as_alone(case, exported, tokens):
    session = TARGET.session(exported(case))
    short, full = session.logits(tokens[:8]), session.logits(tokens)
    session.reset()
    rows = torch.tensor([tokens, [0] * 5 + tokens[:8]])
    mask = torch.tensor([[1] * 13, [0] * 5 + [1] * 8])
    scores = session.extend(rows, mask, (mask.cumsum(1) - 1).clamp(min=0))
    torch.testing.assert_close(scores[0], full, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores[1, 5:], short, rtol=1e-4, atol=1e-4)
    mask = torch.cat((mask, torch.ones(2, 1).long()), 1)
    scores = session.extend(torch.tensor([[5], [7]]), mask, torch.tensor([[13], [8]]))
    expected = session.logits([*tokens[:8], 7])[-1]
    torch.testing.assert_close(scores[1, 0], expected, rtol=1e-4, atol=1e-4)


@ARCHITECTURES
def test_the_twin_holds_the_same_model_in_float32(case, tmp_path, tokens):
    TARGET.write_twin(case.checkpoint, tmp_path / "twin")
    assert not list(TARGET.dequantize(tmp_path / "twin"))
    expected = case.decoder.logits(torch.tensor([tokens]))[0]
    found = TARGET.logits(tmp_path / "twin", tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@ARCHITECTURES
def test_sizes_told_are_sizes_written(case, exported, tmp_path):
    told = sum(
        holding.bits_per_weight * case.checkpoint.read_packed(holding.module).unpack().numel() / 8
        for holding in TARGET.holdings(case.checkpoint)
    )
    TARGET.write_twin(case.checkpoint, tmp_path / "twin")
    packed, twin = (
        (folder / "openvino_model.bin").stat().st_size
        for folder in (exported(case), tmp_path / "twin")
    )
    weights = sum(entry.shape[0] * entry.shape[1] for entry in case.checkpoint.modules.values())
    # shapes of reshapes, zero points that the file shares and alignment differ by bytes a module
    slack = 64 * len(case.checkpoint.modules)
    assert abs((twin - 4 * weights) - (packed - told)) < slack


@pytest.mark.parametrize("columns", [20, 36, 100])
@pytest.mark.parametrize("scheme", ["int4-g20", "nonary-g64", "ternary-g32", "int2-channel-asym"])
def test_any_group_size_is_exact(tmp_path, columns, scheme):
    weight = torch.randn(7, columns, generator=torch.Generator().manual_seed(1))
    scale, zero = fit(weight, parse_scheme(scheme), "absmax")
    packed = encode(weight, parse_scheme(scheme), scale, zero)
    constants = Constants(openvino=openvino, ops=openvino.opset13)
    result = openvino.opset13.result(constants.dequantize(packed, "w"))
    openvino.serialize(openvino.Model([result], [], "m"), str(tmp_path / "openvino_model.xml"))
    ((name, found),) = read_back(openvino, tmp_path)
    assert name == "w"
    assert torch.equal(found, packed.dequantize())


def test_zero_points_beyond_the_codes_are_refused():
    scheme = parse_scheme("int4-g16-asym")
    codes, scale = torch.zeros(1, 16, dtype=torch.uint8), torch.ones(1, 1, dtype=torch.float16)
    packed = from_codes(codes, scheme, scale, torch.tensor([[9]], dtype=torch.int8))
    constants = Constants(openvino=openvino, ops=openvino.opset13)
    with pytest.raises(UnsupportedError, match=r"zero points from 9 to 9.*from -8 to 7.*symmetric"):
        constants.dequantize(packed, "w")


def test_refusals(refused: tuple[PackedCheckpoint, str], tmp_path: Path):
    checkpoint, message = refused
    with pytest.raises(UnsupportedError, match=f"'openvino'.*q_proj: .*{message}"):
        TARGET.write(checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_groups_that_end_inside_a_byte_are_refused(with_module, tmp_path):
    with pytest.raises(UnsupportedError, match=r"5 of 80 columns share a scale, 20 bits: .*of 4"):
        TARGET.write(with_module("int4-g5"), tmp_path / "out")


def test_an_unknown_architecture_is_refused(cases, tmp_path):
    checkpoint = cases("llama").checkpoint
    other = replace(checkpoint, config={**checkpoint.config, "model_type": "starcoder2"})
    assert {holding.kind for holding in TARGET.holdings(other)} == {None}
    with pytest.raises(UnsupportedError, match="unknown decoder architecture 'starcoder2'"):
        TARGET.write(other, tmp_path / "out")
    capped = replace(checkpoint, config={**checkpoint.config, "model_type": "gemma2"})
    with pytest.raises(
        UnsupportedError, match=r"no caps on scores .*\(gemma2\): export to hugging"
    ):
        TARGET.write(capped, tmp_path / "out")


def test_a_missing_client_names_the_command(cases, exported, monkeypatch):
    out = exported(cases("llama"))
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tercet\[openvino\]'"):
        TARGET.logits(out, [1])


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_export_is_refused(cases, exported, tmp_path, damage):
    out = tmp_path / "out"
    shutil.copytree(exported(cases("llama")), out)
    data = out / "openvino_model.bin"
    raw = bytearray(data.read_bytes())
    raw[100] ^= 1
    data.write_bytes(raw if damage == "flipped" else raw[:-1])
    with pytest.raises(CheckpointError, match=r"export the checkpoint again with --to openvino"):
        TARGET.logits(out, [1, 2])


@contextmanager
def limited_files(size: int) -> Generator[None]:
    """Files of this process cannot grow beyond that many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_limited(checkpoint: PackedCheckpoint, out: Path, size: int) -> None:
    with limited_files(size):
        TARGET.write(checkpoint, out)


@pytest.mark.parametrize("case", ["llama"], indirect=True)
def test_a_write_that_fails_says_so_and_leaves_nothing(case, exported, tmp_path):
    whole = (exported(case) / MODEL_NAME).with_suffix(".bin").stat().st_size
    for size, words in (
        (1000, "beyond the limit on file sizes"),
        (whole // 2, "beyond the limit on file sizes"),
        # where the last byte fails
        (whole - 1, "beyond the limit on file sizes|OpenVINO could not write its files"),
    ):
        with pytest.raises(CheckpointError, match=words):
            write_limited(case.checkpoint, tmp_path / "out", size)
        assert list(tmp_path.iterdir()) == []
