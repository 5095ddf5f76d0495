"""The onnx target on tiny models: weights bit by bit, the answers, the cache, refusals."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.onnx.quantized_blocks import quantized_blocks
from tercet.export.onnx.target import TARGET, OnnxTarget
from tercet.export.target import find_target
from tercet.formats import encode, from_codes, parse_scheme

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

EXACT = OnnxTarget(accuracy_level=0)
ARCHITECTURES = pytest.mark.parametrize(
    "case", ["llama", "mistral", "qwen2", "qwen3"], indirect=True
)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[Path, Path] = {}

    def export(case: Any, target: OnnxTarget = EXACT) -> Path:
        checkpoint = case.checkpoint
        key = checkpoint.directory / str(target.accuracy_level)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("onnx") / "out"
            target.write(checkpoint, made[key])
        return made[key]

    return export


def test_it_is_found_by_name():
    assert find_target("onnx") is TARGET


@ARCHITECTURES
@pytest.mark.parametrize("target", [EXACT, TARGET], ids=["exact", "default"])
def test_every_packed_weight_reads_back_bit_by_bit(case, exported, target):
    found = list(target.dequantize(exported(case, target)))
    assert sorted(name for name, _ in found) == sorted(case.checkpoint.modules)
    for name, weight in found:
        expected = case.checkpoint.read_packed(name).dequantize()
        assert torch.equal(weight, expected), name


@ARCHITECTURES
def test_logits_are_those_of_the_decoder(case, exported, tokens):
    expected = case.decoder.logits(torch.tensor([tokens]))[0]
    found = EXACT.logits(exported(case), tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@ARCHITECTURES
def test_rounding_the_inputs_changes_little(case, exported, tokens):
    target = OnnxTarget(accuracy_level=4)
    expected = case.decoder.logits(torch.tensor([tokens]))[0]
    error = target.logits(exported(case, target), tokens) - expected
    assert 0 < float(error.norm() / expected.norm()) < 0.1


@ARCHITECTURES
def test_step_by_step_is_the_same_as_at_once(case, exported, tokens):
    session = EXACT.session(exported(case))
    whole = session.logits(tokens)
    cache, steps = session.empty(), []
    for part in ([*tokens[:4]], *([token] for token in tokens[4:])):
        scores, cache = session.extend(torch.tensor([part]), cache)
        steps.append(scores[0])
    torch.testing.assert_close(torch.cat(steps), whole, rtol=1e-4, atol=1e-4)


@ARCHITECTURES
def test_greedy_text_is_that_of_the_decoder(case, exported, tokens):
    cache, given, expected = case.decoder.cache(), tokens, []
    for _ in range(12):
        scores = case.decoder.extend(torch.tensor([given]), cache)[0]
        expected.append(int(scores.argmax()))
        given = expected[-1:]
    assert EXACT.greedy(exported(case), tokens, 12) == expected


@ARCHITECTURES
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_answer_as_alone(case, exported, tokens, side):
    session = EXACT.session(exported(case))
    short = tokens[:8]
    padding = [0] * (len(tokens) - len(short))
    row, there = [*padding, *short], [*(0 for _ in padding), *(1 for _ in short)]
    if side == "right":
        row, there = [*short, *padding], there[::-1]
    mask = torch.tensor([[1] * len(tokens), there])
    scores, cache = session.extend(torch.tensor([tokens, row]), session.empty(2), mask)
    start = len(padding) if side == "left" else 0
    alone = session.logits(short)
    torch.testing.assert_close(scores[0], session.logits(tokens), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores[1, start : start + 8], alone, rtol=1e-4, atol=1e-4)
    if side == "left":
        # padding sees itself alone, never nothing: a softmax over nothing may be NaN
        torch.testing.assert_close(scores[1, 0], session.logits([0])[0], rtol=1e-4, atol=1e-4)
    mask = torch.cat((mask, torch.ones(2, 1).long()), 1)
    scores, _ = session.extend(torch.tensor([[5], [7]]), cache, mask)
    assert bool(scores.isfinite().all())
    if side == "left" or case.decoder.config.windows[0] is None:
        expected = session.logits([*short, 7])[-1]
        torch.testing.assert_close(scores[1, 0], expected, rtol=1e-4, atol=1e-4)


@ARCHITECTURES
def test_the_twin_holds_the_same_model_in_float32(case, tmp_path, tokens):
    TARGET.write_twin(case.checkpoint, tmp_path / "twin")
    assert not list(TARGET.dequantize(tmp_path / "twin"))
    expected = case.decoder.logits(torch.tensor([tokens]))[0]
    found = TARGET.logits(tmp_path / "twin", tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@ARCHITECTURES
def test_sizes_told_are_sizes_written(case, exported):
    model = onnx.load(exported(case) / "model.onnx", load_external_data=False)
    lengths = {
        entry.name: int({item.key: item.value for item in entry.external_data}["length"])
        for entry in model.graph.initializer
        if entry.external_data
    }
    for holding in EXACT.holdings(case.checkpoint):
        rows, columns = case.checkpoint.modules[holding.module].shape
        parts = ("packed", "scale", "zero")
        size = sum(lengths.get(f"{holding.module}.weight_{part}", 0) for part in parts)
        assert holding.bits_per_weight == pytest.approx(size * 8 / (rows * columns)), holding


def test_a_tied_embedding_is_written_once(cases, exported):
    out = exported(cases("llama"))
    embedding = cases("llama").checkpoint.read_packed("model.embed_tokens")
    table = embedding.shape[0] * embedding.shape[1]
    assert table * 4 > (out / "model.onnx.data").stat().st_size - 60 * 4096
    onnx.checker.check_model(str(out / "model.onnx"))


def test_codes_of_a_weight_by_hand():
    weight = torch.tensor([[1.0, -1.0, 0.0, 1.0] * 5])
    packed = encode(weight, parse_scheme("ternary-g16"), torch.tensor([[2.0, 1.0]]))
    blocks = quantized_blocks(packed, "w")
    assert (blocks.bits, blocks.block, blocks.zero) == (2, 16, None)
    # 1.0 / 2.0 rounds to even, to level 0; levels -1, 0, 1 are codes 1, 2, 3; padding is code 2
    assert blocks.codes.tolist() == [[[0xAA] * 4, [0b11_10_01_11, 0xAA, 0xAA, 0xAA]]]
    assert blocks.scale.tolist() == [[2.0, 1.0]]


def test_zero_points_beyond_the_codes_are_refused():
    scheme = parse_scheme("int4-g16-asym")
    codes, scale = torch.zeros(1, 16, dtype=torch.uint8), torch.ones(1, 1, dtype=torch.float16)
    packed = from_codes(codes, scheme, scale, torch.tensor([[9]], dtype=torch.int8))
    with pytest.raises(UnsupportedError, match=r"zero points from 9 to 9.*from -8 to 7.*symmetric"):
        quantized_blocks(packed, "w")


def test_refusals(refused: tuple[PackedCheckpoint, str], tmp_path: Path):
    checkpoint, message = refused
    with pytest.raises(UnsupportedError, match=f"'onnx'.*q_proj: .*{message}"):
        TARGET.write(checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_groups_that_no_block_divides_are_refused(with_module, tmp_path):
    with pytest.raises(UnsupportedError, match=r"groups of 20: .*a multiple of 16"):
        TARGET.write(with_module("int4-g20"), tmp_path / "out")


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


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_a_missing_client_names_the_command(cases, exported, monkeypatch, module):
    out = exported(cases("llama"))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tercet\[onnx\]'"):
        list(EXACT.dequantize(out))


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "no seal"])
def test_a_damaged_export_is_refused(cases, exported, tmp_path, damage):
    out = tmp_path / "out"
    shutil.copytree(exported(cases("llama")), out)
    data = out / "model.onnx.data"
    match damage:
        case "cut":
            data.write_bytes(data.read_bytes()[:-1])
        case "flipped":
            raw = bytearray(data.read_bytes())
            raw[100] ^= 1
            data.write_bytes(raw)
        case "missing":
            data.unlink()
        case _:
            (out / "tercet_export.json").unlink()
    with pytest.raises(CheckpointError, match=r"export the checkpoint again with --to onnx"):
        EXACT.logits(out, [1, 2])


def test_an_export_that_is_there_is_kept(cases, exported):
    out = exported(cases("llama"))
    with pytest.raises(CheckpointError, match="exists already"):
        EXACT.write(cases("llama").checkpoint, out)
