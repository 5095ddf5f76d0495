"""Files of other programs become packed checkpoints without loss."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

import tercet
from tercet.checkpoints.gguf import blocks as gguf_blocks
from tercet.checkpoints.gguf.codes import CODE_BLOCKS
from tercet.checkpoints.imports.gguf import import_gguf, read_packed
from tercet.checkpoints.sources.gguf_file import GgufFile
from tercet.checkpoints.sources.open import open_source
from tercet.errors import CheckpointError
from tercet.export.gguf import TARGET
from tercet.export.gguf.container import TensorEntry, write_container


def foreign(path: Path, kind: str, make_blocks: Callable[[Tensor], bytes], number: int) -> Path:
    """A llama file of another program: no notes, its matrices in one type."""
    generator = torch.Generator().manual_seed(11)
    shapes = {"token_embd": (96, 256), "output": (96, 256)}
    for layer in range(2):
        rows = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "ffn_gate": 512, "ffn_up": 512}
        shapes |= {f"blk.{layer}.{name}": (count, 256) for name, count in rows.items()}
        shapes |= {f"blk.{layer}.attn_output": (256, 256), f"blk.{layer}.ffn_down": (256, 512)}
    entries = []
    for name, shape in shapes.items():
        raw = make_blocks(torch.randn(shape, generator=generator) * 0.06)
        entries.append(
            TensorEntry(
                name=f"{name}.weight",
                shape=shape,
                number=number,
                size_bytes=len(raw),
                chunks=lambda raw=raw: [raw],
            )
        )
    norms = ["output_norm"] + [f"blk.{i}.{n}_norm" for i in (0, 1) for n in ("attn", "ffn")]
    for name in norms:
        raw = torch.ones(256).numpy().tobytes()
        entries.append(
            TensorEntry(
                name=f"{name}.weight",
                shape=(256,),
                number=0,
                size_bytes=1024,
                chunks=lambda raw=raw: [raw],
            )
        )
    fields = {
        "general.architecture": kind,
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 96,
        "tokenizer.ggml.model": "none",
    }
    write_container(path, fields, entries)
    # as another program would leave it: under another key the checksums mean nothing
    path.write_bytes(path.read_bytes().replace(b"tercet.checksums", b"foreign.checksum"))
    return path


def by_gguf(kind: GGMLQuantizationType) -> Callable[[Tensor], bytes]:
    return lambda weight: quantize(weight.numpy(), kind).tobytes()


def ternary_in(name: str, draws: int = 3) -> Callable[[Tensor], bytes]:
    blocks = CODE_BLOCKS[name]

    def pack(weight: Tensor) -> bytes:
        codes = (weight.flatten() * 1e4).long().remainder(draws).to(torch.uint8)
        scale = weight.abs().reshape(-1, blocks.weights).mean(1).half()
        return blocks.encode(codes.reshape(-1, blocks.weights), scale).numpy().tobytes()

    return pack


FOREIGN = [
    ("Q4_0", by_gguf(GGMLQuantizationType.Q4_0), "int4-g32-asym"),
    ("Q5_0", by_gguf(GGMLQuantizationType.Q5_0), "int5-g32-asym"),
    ("Q8_0", by_gguf(GGMLQuantizationType.Q8_0), "int8-g32"),
    ("TQ1_0", ternary_in("TQ1_0"), "ternary-g256"),
    ("TQ2_0", ternary_in("TQ2_0"), "ternary-g256-bits2"),
    ("Q2_0", ternary_in("Q2_0"), "ternary-g64"),
    ("Q2_0", ternary_in("Q2_0", 4), "int2-g64-asym"),
    ("MXFP4", by_gguf(GGMLQuantizationType.MXFP4), "mxfp4"),
]


@pytest.mark.parametrize(("name", "blocks", "scheme"), FOREIGN)
def test_foreign_files_are_imported_without_loss(
    name: str, blocks: Callable[[Tensor], bytes], scheme: str, tmp_path: Path
) -> None:
    path = foreign(tmp_path / "a.gguf", "llama", blocks, CODE_BLOCKS[name].number)
    source = open_source(path)
    checkpoint = tercet.open_packed(import_gguf(path, tmp_path / "packed"))
    checkpoint.verify()
    assert {entry.format for entry in checkpoint.modules.values()} == {scheme}
    assert len(checkpoint.modules) == 16
    for module in checkpoint.modules:
        expected = source.read(f"{module}.weight")
        assert torch.equal(checkpoint.read_packed(module).dequantize(), expected), module
    TARGET.write(checkpoint, tmp_path / "again.gguf")
    again = GgufFile(tmp_path / "again.gguf")
    for module in checkpoint.modules:
        first, second = (file.find_tensor(f"{module}.weight") for file in (GgufFile(path), again))
        assert first.kind == second.kind
        assert torch.equal(
            gguf_blocks.read_code_blocks(path, first),
            gguf_blocks.read_code_blocks(again.path, second),
        ), module


def fork_blocks(weight: Tensor) -> bytes:
    """Ternary in the fork's blocks: 128 weights, fp16 scale, 32 bytes of codes."""
    groups = weight.flatten().reshape(-1, 128)
    codes = (groups * 1e4).long().remainder(3).to(torch.uint8)
    packed = CODE_BLOCKS["Q2_0"].pack(codes.reshape(-1, 64)).reshape(-1, 32)
    scale = groups.abs().mean(1).half().view(torch.uint8).reshape(-1, 2)
    return torch.cat((scale, packed), 1).numpy().tobytes()


def test_the_forks_blocks_of_128_are_told_apart(tmp_path: Path) -> None:
    path = foreign(tmp_path / "a.gguf", "llama", fork_blocks, 42)
    message = r"'token_embd.weight' is marked type 42, Q2_0.*blocks of 128 weights in 34"
    with pytest.raises(CheckpointError, match=message):
        import_gguf(path, tmp_path / "packed")
    with pytest.raises(CheckpointError, match=message):
        open_source(path)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = foreign(tmp_path / "a.gguf", "llama", ternary_in("Q2_0"), 42)
    begin = GgufFile(path).header.tensors["blk.0.ffn_up.weight"].begin
    raw = path.read_bytes()
    path.write_bytes(raw[: begin + 36] + struct.pack("<e", float("nan")) + raw[begin + 38 :])
    with pytest.raises(CheckpointError, match=r"up_proj.weight': block 2 is no block of Q2_0"):
        import_gguf(path, tmp_path / "packed")


def test_a_note_of_another_scheme_is_refused(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    TARGET.write(make(layers="ternary-g64"), path)
    source, name = GgufFile(path), "model.layers.0.mlp.up_proj.weight"
    for noted, message in [
        ("ternary-g32", "its blocks of 64 share one scale, 'ternary-g32' has 32"),
        ("ternary-g128", "its scales differ within one group"),
        ("mxfp4", "its blocks of 64 share one scale, 'mxfp4' has 32"),
    ]:
        with pytest.raises(CheckpointError, match=rf"'{name}' in Q2_0: {message}"):
            read_packed(source, name, noted)
    wide = GgufFile(foreign(tmp_path / "b.gguf", "llama", ternary_in("Q2_0", 4), 42))
    with pytest.raises(CheckpointError, match="numbers from -1 to 2, ternary those from -1 to 1"):
        read_packed(wide, name, "ternary-g64")


def test_a_file_without_codes_is_for_compress(make: Any, tmp_path: Path) -> None:
    TARGET.write_twin(make(), tmp_path / "twin.gguf")
    with pytest.raises(CheckpointError, match="there are no codes to keep; compress it instead"):
        import_gguf(tmp_path / "twin.gguf", tmp_path / "packed")
