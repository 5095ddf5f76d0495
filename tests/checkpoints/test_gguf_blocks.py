"""Every type of block against its formula in scalar Python, as ggml's documentation states it."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from tercet.checkpoints.gguf import blocks as gguf_blocks
from tercet.checkpoints.gguf.blocks import PLAIN_DTYPES, QUANTIZED_KINDS, read_blocks
from tercet.checkpoints.gguf.header import read_gguf_header


def half(raw: bytes) -> float:
    return struct.unpack("<e", raw)[0]


def nibbles(raw: bytes) -> list[int]:
    return [byte & 15 for byte in raw] + [byte >> 4 for byte in raw]


def q4_0(b: bytes) -> list[float]:
    return [half(b[:2]) * (q - 8) for q in nibbles(b[2:])]


def q4_1(b: bytes) -> list[float]:
    return [half(b[:2]) * q + half(b[2:4]) for q in nibbles(b[4:])]


def fives(high: bytes, low: bytes) -> list[int]:
    bits = int.from_bytes(high, "little")
    return [q | (bits >> i & 1) << 4 for i, q in enumerate(nibbles(low))]


def q5_0(b: bytes) -> list[float]:
    return [half(b[:2]) * (q - 16) for q in fives(b[2:6], b[6:])]


def q5_1(b: bytes) -> list[float]:
    return [half(b[:2]) * q + half(b[2:4]) for q in fives(b[4:8], b[8:])]


def q8_0(b: bytes) -> list[float]:
    return [half(b[:2]) * q for q in struct.unpack("<32b", b[2:])]


def k_scale(s: bytes, j: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of sub-block j out of 12 bytes."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def k_blocks(b: bytes, quants: list[int]) -> list[float]:
    values: list[float] = []
    for j in range(8):
        scale, minimum = k_scale(b[4:16], j)
        d, m = f32(half(b[:2]) * scale), f32(half(b[2:4]) * minimum)
        values += [f32(d * q) - m for q in quants[32 * j : 32 * j + 32]]
    return values


def f32(value: float) -> float:
    return float(np.float32(value))


def q4_k(b: bytes) -> list[float]:
    return k_blocks(b, [q for j in range(4) for q in nibbles(b[16 + 32 * j : 48 + 32 * j])])


def q5_k(b: bytes) -> list[float]:
    low = [q for j in range(4) for q in nibbles(b[48 + 32 * j : 80 + 32 * j])]
    return k_blocks(b, [q | (b[16 + i % 32] >> i // 32 & 1) << 4 for i, q in enumerate(low)])


def q6_k(b: bytes) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b[208:])
    values: list[float] = []
    for i in range(256):
        n, r = divmod(i, 128)
        quarter, at = divmod(r, 32)
        nibble = low[64 * n + 32 * (quarter % 2) + at] >> 4 * (quarter // 2) & 15
        q = (nibble | (high[32 * n + at] >> 2 * quarter & 3) << 4) - 32
        values.append(f32(d * scales[i // 16]) * q)
    return values


def tq2_0(b: bytes) -> list[float]:
    d = half(b[64:])
    return [
        d * ((b[32 * n + m] >> 2 * shift & 3) - 1)
        for n in range(2)
        for shift in range(4)
        for m in range(32)
    ]


def tq1_0(b: bytes) -> list[float]:
    d = half(b[52:])

    def trit(byte: int, n: int) -> int:
        return ((byte * 3**n & 255) * 3 >> 8) - 1

    runs = [(b[0:32], 5), (b[32:48], 5), (b[48:52], 4)]
    return [d * trit(byte, n) for run, count in runs for n in range(count) for byte in run]


FORMULAS: dict[Kind, tuple[Callable[[bytes], list[float]], tuple[int, ...]]] = {
    # the second entry: where in a block its float16 scales lie
    Kind.Q4_0: (q4_0, (0,)),
    Kind.Q4_1: (q4_1, (0, 2)),
    Kind.Q5_0: (q5_0, (0,)),
    Kind.Q5_1: (q5_1, (0, 2)),
    Kind.Q8_0: (q8_0, (0,)),
    Kind.Q4_K: (q4_k, (0, 2)),
    Kind.Q5_K: (q5_k, (0, 2)),
    Kind.Q6_K: (q6_k, (208,)),
    Kind.TQ1_0: (tq1_0, (52,)),
    Kind.TQ2_0: (tq2_0, (64,)),
}


def random_blocks(kind: Kind, blocks: int, scales: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng(kind.value)
    raw = generator.integers(0, 256, (blocks, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in scales:
        halves = generator.normal(0, 0.05, blocks).astype(np.float16)
        raw[:, at : at + 2] = halves.view(np.uint8).reshape(blocks, 2)
    return raw


def written(path: Path, data: np.ndarray, kind: Kind) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("first", np.arange(5, dtype=np.float32))
    writer.add_tensor("w", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", FORMULAS, ids=lambda kind: kind.name)
def test_blocks_follow_their_formula(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    formula, scales = FORMULAS[kind]
    block = GGML_QUANT_SIZES[kind][0]
    raw = random_blocks(kind, 15, scales)
    # five blocks a row and four a piece: a piece ends inside a row, and the last one is short
    monkeypatch.setattr(gguf_blocks, "_PIECE_WEIGHTS", 4 * block)
    path = written(tmp_path / "a.gguf", raw.reshape(3, -1), kind)
    tensor = read_gguf_header(path).tensors["w"]
    got = read_blocks(path, tensor)
    assert got.dtype == torch.float32
    assert got.shape == (3, 5 * block)
    golden = [value for row in raw for value in formula(row.tobytes())]
    torch.testing.assert_close(got.flatten(), torch.tensor(golden), rtol=0, atol=0)


def test_golden_blocks() -> None:
    scale, minimum = struct.pack("<e", 0.5), struct.pack("<e", -1.0)
    nibble = bytes(range(0x10, 0x20))
    assert q4_0(scale + nibble)[:2] == [-4.0, -3.5]
    assert q4_0(scale + nibble)[16:18] == [-3.5, -3.5]
    assert q4_1(scale + minimum + nibble)[14:17] == [6.0, 6.5, -0.5]
    assert q8_0(scale + struct.pack("<32b", *range(-16, 16)))[::31] == [-8.0, 7.5]


@pytest.mark.parametrize("kind", PLAIN_DTYPES, ids=lambda kind: kind.name)
def test_plain_types_keep_their_bits_and_dtype(tmp_path: Path, kind: Kind) -> None:
    dtype = PLAIN_DTYPES[kind]
    values = torch.tensor([[1.0, -2.5, 3e-5], [0.0, -0.0, 65504.0]], dtype=torch.float64).to(dtype)
    raw = values.view(torch.uint8).numpy()
    path = written(tmp_path / "a.gguf", raw, kind)
    got = read_blocks(path, read_gguf_header(path).tensors["w"])
    assert got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), values.view(torch.uint8))


def test_every_admitted_type_can_be_dequantized(tmp_path: Path) -> None:
    for kind in QUANTIZED_KINDS:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        path = written(tmp_path / kind.name, np.zeros((2, block_bytes), np.uint8), kind)
        got = read_blocks(path, read_gguf_header(path).tensors["w"])
        assert got.shape == (2, block), kind.name
        assert not got.any(), kind.name
