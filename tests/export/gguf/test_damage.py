"""A damaged file is refused, and what is wrong is named."""

from pathlib import Path
from typing import Any

import pytest

from tercet.checkpoints.gguf.notes import check_checksums
from tercet.checkpoints.imports.gguf import import_gguf
from tercet.checkpoints.sources.gguf_file import GgufFile
from tercet.errors import CheckpointError
from tercet.export.gguf import TARGET


def damage(raw: bytes, at: int, flip: int = 1) -> bytes:
    return raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :]


def test_damage_is_named(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    TARGET.write(make(layers="ternary-g64"), path)
    raw, header = path.read_bytes(), GgufFile(path).header

    def refused(content: bytes, message: str) -> None:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"a\.gguf is no sound GGUF file: {message}"):
            import_gguf(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    refused(raw[:-4096], "truncated: tensor 'blk.1.ffn_norm.weight' ends at byte")
    refused(raw[: len(raw) // 2], "truncated: tensor 'blk.*' ends at byte")
    refused(raw[:1000], "truncated: its header goes on past")
    at = raw.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4
    refused(damage(raw, at + 1), r"tensor 'blk.0.ffn_up.weight', \[512, 0\] in Q2_0, takes 0 bytes")
    refused(
        damage(raw, at + 8), r"tensor 'blk.0.ffn_up.weight', \[513, 256\] in Q2_0, takes 36,936"
    )
    refused(damage(raw, at + 16, 2 ^ 42), "tensor 'blk.0.ffn_up.weight', .* in Q4_0, takes")
    epsilon = raw.index(b"layer_norm_rms_epsilon") + len("layer_norm_rms_epsilon") + 5
    refused(damage(raw, epsilon), "the checksum of its header does not match")
    place = header.tensors["blk.1.attn_v.weight"].begin
    refused(damage(raw, place + 5), "the checksum of tensor 'blk.1.attn_v.weight' does not match")


def test_any_flipped_bit_is_found(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    TARGET.write(make(layers="ternary-g64"), path)
    raw, header = path.read_bytes(), GgufFile(path).header
    places = list(range(0, header.data_begin, 3))
    for tensor in header.tensors.values():
        places += range(tensor.begin, tensor.begin + tensor.size_bytes, 99991)
    for at in places:
        path.write_bytes(damage(raw, at, 1 << at % 8))
        with pytest.raises(CheckpointError):
            check_checksums(path, GgufFile(path).header)
