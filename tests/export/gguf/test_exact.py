"""What is written is exact, and gives the same scores in llama.cpp."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from torch import Tensor

import tercet
from tercet.checkpoints.gguf.codes import CODE_BLOCKS
from tercet.checkpoints.imports.gguf import import_gguf
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError
from tercet.export.gguf import TARGET
from tercet.export.gguf.tensors import encode_blocks, pairs_from_halves
from tercet.formats import ELEMENTS, parse_scheme
from tercet.formats.encode import from_codes

IDS = torch.randint(3, 96, (24,), generator=torch.Generator().manual_seed(3)).tolist()


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def scores(checkpoint: PackedCheckpoint) -> Tensor:
    return tercet.load(checkpoint.directory).logits(IDS)[0]


def same_bytes(first: PackedCheckpoint, second: PackedCheckpoint) -> None:
    assert first.modules == second.modules
    for name in first.quantization.layout():
        ours, theirs = first.tensor(name), second.tensor(name)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)), name


@pytest.mark.parametrize("name", CODE_BLOCKS)
def test_blocks_are_those_of_ggml(name: str, client: Any) -> None:
    blocks = CODE_BLOCKS[name]
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, blocks.count, (50, blocks.weights), generator=draw).to(torch.uint8)
    scale, numbers = torch.randn(50, generator=draw).half(), codes.float() + blocks.lowest
    if blocks.element is not None:
        # every power of two, down to subnormal ones, but those whose product is infinite
        scale = torch.arange(0, 250, 5, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        numbers = ELEMENTS[blocks.element].decode(codes)
    raw = blocks.encode(codes, scale)
    expected = numbers * scale.float()[:, None]
    values = torch.empty_like(expected)
    pointer, data = ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(raw.data_ptr())
    getattr(client, f"dequantize_row_{name.lower()}")(data, pointer, ctypes.c_int64(values.numel()))
    assert torch.equal(values, expected)
    if name != "Q2_0":
        theirs = dequantize(raw.numpy(), GGMLQuantizationType(blocks.number))
        assert np.array_equal(theirs, expected.numpy())
    found, found_scale, sound = blocks.decode(raw)
    assert torch.equal(found, codes)
    assert torch.equal(found_scale.view(torch.uint8), scale.view(torch.uint8))
    assert bool(sound.all())


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_a_word_that_no_codes_give_is_not_sound(name: str) -> None:
    blocks = CODE_BLOCKS[name]
    raw = blocks.encode(torch.ones(3, 256, dtype=torch.uint8), torch.ones(3).half())
    raw[1, 7] = 255 if name == "TQ2_0" else 1
    raw[2, -1] = 0x7C
    raw[2, -2] = 0
    assert blocks.decode(raw)[2].tolist() == [True, False, False]


# relative error of the scores by llama.cpp's int8 activations on these models: measured 0.009 to
# 0.030; rows of queries and keys left in the model's order give 0.7
INT8 = 0.05
# gemma3_text has six layers, not two: measured 0.055. In olmoe the rounded inputs send a token or
# two to other experts: measured 0.068.
INT8_OF = {"gemma3_text": 0.09, "olmoe": 0.1}


EXACT = [
    ("llama", "ternary-g256", "TQ1_0"),
    ("llama", "ternary-g256-bits2", "TQ2_0"),
    ("llama", "ternary-channel-float32", None),
    ("qwen2", "ternary-tensor", "TQ1_0"),
    ("qwen3", "ternary-g64", "Q2_0"),
    ("llama", "ternary-g128", "Q2_0"),
    ("qwen2", "ternary-g32", "Q4_0"),
    ("llama", "nonary-g64", "Q4_0"),
    ("qwen3", "nonary-b2x64-bfloat16", "Q4_0"),
    ("qwen2", "int4-g32", "Q4_0"),
    ("llama", "int3-channel", "Q4_0"),
    ("qwen3", "int2-g64", "Q2_0"),
    ("llama", "mxfp4", "MXFP4"),
    ("qwen2", "mxfp4", "MXFP4"),
    ("llama", "int8-g128", "Q8_0"),
    ("qwen2", "int8-channel", "Q8_0"),
    ("llama", "int4-g64-asym", "Q5_0"),
    ("llama", "int5-g32", "Q5_0"),
    ("qwen3", "int6-g64", "Q8_0"),
    ("gemma2", "ternary-g64", "Q2_0"),
    ("gemma3_text", "int4-g32", "Q4_0"),
    ("olmo2", "nonary-g64", "Q4_0"),
    ("smollm3", "int4-g32", "Q4_0"),
    ("granite", "nonary-g64", "Q4_0"),
    ("mistral", "ternary-g64", "Q2_0"),
    ("phi3", "int4-g64", "Q4_0"),
    ("qwen2_moe", "int4-g64", "Q4_0"),
    ("qwen3_moe", "nonary-g64", "Q4_0"),
    ("olmoe", "ternary-g64", "Q2_0"),
]


@pytest.mark.parametrize(("kind", "layers", "held"), EXACT)
def test_exact_in_llama_cpp_and_back(
    kind: str, layers: str, held: str | None, make: Any, client: Any, tmp_path: Path
) -> None:
    checkpoint = make(kind, layers, tied=kind not in ("qwen2", "olmo2", "olmoe", "qwen2_moe"))
    if held is None:
        with pytest.raises(UnsupportedError, match=r"fp16, and \d+ of \d+ scales \(float32\)"):
            TARGET.write(checkpoint, tmp_path / "a.gguf")
        return
    found = {entry.module: entry for entry in TARGET.holdings(checkpoint)}
    down = next(found[one] for one in found if "layers.1.mlp" in one and "down_proj" in one)
    assert down.kind == held
    assert down.bits_per_weight == CODE_BLOCKS[held].bits_per_weight
    TARGET.write(checkpoint, tmp_path / "a.gguf")
    values = dict(TARGET.dequantize(tmp_path / "a.gguf"))
    assert set(values) == set(checkpoint.modules)
    for module, value in values.items():
        assert torch.equal(value, checkpoint.read_packed(module).dequantize()), module
    expected = scores(checkpoint)
    assert error(TARGET.logits(tmp_path / "a.gguf", IDS), expected) < INT8_OF.get(kind, INT8)
    imported = import_gguf(tmp_path / "a.gguf", tmp_path / "back")
    back = tercet.open_packed(imported)
    back.verify()
    if "asym" not in layers:
        same_bytes(checkpoint, back)
    assert torch.equal(scores(back), expected)


# llama.cpp holds keys and values in float16, and this model has six layers whose norms make them
# large: measured 0.003. A window that is one position longer gives 0.7, half the factor of the
# scaled rotation 0.1, scores scaled by 60 ** -0.5 in the place of 64 ** -0.5 0.04.
TWIN = {"gemma3_text": 6e-3}


@pytest.mark.parametrize(
    "kind",
    [
        *("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "smollm3"),
        *("granite", "mistral", "phi3", "qwen2_moe", "qwen3_moe", "olmoe"),
    ],
)
def test_the_twin_is_in_float32(kind: str, make: Any, client: Any, tmp_path: Path) -> None:
    checkpoint = make(kind, "ternary-g64", tied=kind == "gemma2")
    TARGET.write_twin(checkpoint, tmp_path / "twin.gguf")
    reader = GGUFReader(tmp_path / "twin.gguf")
    assert {tensor.tensor_type for tensor in reader.tensors} == {GGMLQuantizationType.F32}
    limit = TWIN.get(kind, 2e-3)
    assert error(TARGET.logits(tmp_path / "twin.gguf", IDS), scores(checkpoint)) < limit
    assert list(TARGET.differences(checkpoint, tmp_path / "twin.gguf")) == []
    model, expected = tercet.load(checkpoint.directory).model, list(IDS)
    for _ in range(6):
        expected.append(int(model.logits(torch.tensor([expected]))[0, -1].argmax()))
    assert TARGET.greedy(tmp_path / "twin.gguf", IDS, 6) == expected[len(IDS) :]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        # other constants than any model of Llama's: the file has only what follows from them
        {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 8.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_scaled_rotations(rope: dict[str, Any], make: Any, client: Any, tmp_path: Path) -> None:
    checkpoint = make(rope_parameters=rope)
    TARGET.write_twin(checkpoint, tmp_path / "twin.gguf")
    assert error(TARGET.logits(tmp_path / "twin.gguf", IDS), scores(checkpoint)) < 2e-3
    TARGET.write(checkpoint, tmp_path / "a.gguf")
    back = tercet.open_packed(import_gguf(tmp_path / "a.gguf", tmp_path / "back"))
    assert back.config["rope_parameters"] == rope
    same_bytes(checkpoint, back)


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_kept_matrices_keep_their_dtype(
    dtype: torch.dtype, name: str, make: Any, client: Any, tmp_path: Path
) -> None:
    checkpoint = make(embedding=None, tied=False, dtype=dtype)
    TARGET.write(checkpoint, tmp_path / "a.gguf")
    reader = GGUFReader(tmp_path / "a.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert (kinds["output.weight"], kinds["output_norm.weight"]) == (name, "F32")
    for tensor in reader.tensors:
        if tensor.tensor_type.name == "Q4_0":
            assert dequantize(tensor.data, tensor.tensor_type).shape[1] == tensor.shape[0]
    back = tercet.open_packed(import_gguf(tmp_path / "a.gguf", tmp_path / "back"))
    same_bytes(checkpoint, back)
    for kept in checkpoint.names():
        assert torch.equal(back.tensor(kept).float(), checkpoint.tensor(kept).float()), kept
    assert error(TARGET.logits(tmp_path / "a.gguf", IDS), scores(checkpoint)) < INT8


@pytest.mark.parametrize(
    ("kind", "embedding", "head", "held"),
    [
        ("llama", "ternary-g256", None, ["TQ1_0"]),
        ("llama", "ternary-g256-bits2", None, ["TQ2_0"]),
        ("qwen2", "ternary-g64", "nonary-g32", ["Q2_0", "Q4_0"]),
        ("qwen3", "nonary-g64", "ternary-g256", ["Q4_0", "TQ1_0"]),
    ],
)
def test_both_ends_take_any_type(
    kind: str,
    embedding: str,
    head: str | None,
    held: list[str],
    make: Any,
    client: Any,
    tmp_path: Path,
) -> None:
    checkpoint = make(kind, "int8-g32", embedding, head, tied=head is None)
    ends = [entry.kind for entry in TARGET.holdings(checkpoint) if "layers" not in entry.module]
    assert sorted(map(str, ends)) == sorted(held)
    TARGET.write(checkpoint, tmp_path / "a.gguf")
    assert error(TARGET.logits(tmp_path / "a.gguf", IDS), scores(checkpoint)) < INT8
    same_bytes(checkpoint, tercet.open_packed(import_gguf(tmp_path / "a.gguf", tmp_path / "back")))


def test_rows_go_where_llamas_converter_puts_them() -> None:
    assert pairs_from_halves(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert pairs_from_halves(6, 1).tolist() == [0, 3, 1, 4, 2, 5]


def test_a_scale_of_minus_zero_turns_no_number(tmp_path: Path) -> None:
    blocks = CODE_BLOCKS["Q4_0"]
    codes = torch.arange(32, dtype=torch.uint8).reshape(1, 32) % 16
    weight = from_codes(codes, parse_scheme("int4-g32"), torch.full((1, 1), -0.0).half())
    raw = b"".join(encode_blocks(weight, blocks, None))
    found, scale, _ = blocks.decode(torch.frombuffer(bytearray(raw), dtype=torch.uint8)[None])
    assert torch.equal(found, codes)
    assert not bool(scale.signbit().any())
