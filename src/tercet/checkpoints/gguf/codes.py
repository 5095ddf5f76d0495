"""GGUF blocks of codes with one scale: their bytes, written and read exactly.

    weight = number * d,   number = code + lowest,   d in fp16
    MXFP4:                 number of code by fp4 e2m1, d a power of two

A generic quantizer (gguf.quantize, llama-quantize) takes the scale from the largest weight of a
block and so damages weights that are ternary or nonary already; here the codes go in as they are.
The layouts are those of ggml's ggml-common.h and ggml-quants.c.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.formats import ELEMENTS

# the first of several base-3 digits is the highest one, so that a decoder multiplies, never divides
_FIVE_TRITS = (81, 27, 9, 3, 1)
_FOUR_TRITS = (81, 27, 9, 3)


@dataclass(frozen=True, kw_only=True)
class CodeBlocks:
    """One type of block.

    Attributes:
        name: ggml's name.
        number: ggml's type id.
        weights: in one block.
        lowest: the number of code 0.
        highest: the largest number; codes are in [0, highest - lowest].
        activation_block: how many inputs llama.cpp rounds to int8 together for its dot product.
        scale_last: whether the scale follows the codes.
        pack: uint8 codes [B, weights] to bytes [B, code_bytes].
        unpack: the reverse; bytes that no codes give may come out as anything.
        element: the element whose codes these are, where they are no whole numbers.
        scale_dtype: of the scale.
    """

    name: str
    number: int
    weights: int
    lowest: int
    highest: int
    code_bytes: int
    activation_block: int
    scale_last: bool
    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]
    element: str | None = None
    scale_dtype: torch.dtype = torch.float16

    @property
    def count(self) -> int:
        """Codes that there are."""
        if self.element is not None:
            return len(ELEMENTS[self.element].levels)
        return self.highest - self.lowest + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of one block."""
        return self.code_bytes + self.scale_dtype.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight, scale included."""
        return 8 * self.size_bytes / self.weights

    def encode(self, codes: Tensor, scale: Tensor) -> Tensor:
        """uint8 codes [B, weights] and scales [B] to blocks uint8 [B, size_bytes]."""
        scales = scale.contiguous().view(torch.uint8).reshape(-1, self.scale_dtype.itemsize)
        packed = self.pack(codes)
        return torch.cat((packed, scales) if self.scale_last else (scales, packed), 1)

    def decode(self, blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Blocks [B, size_bytes] to codes [B, weights], scales [B] and which are sound.

        A block is sound whose scale is finite and whose bytes some codes give.
        """
        width = self.scale_dtype.itemsize
        start = self.code_bytes if self.scale_last else 0
        scale = blocks[:, start : start + width].contiguous().view(self.scale_dtype)[:, 0]
        packed = blocks[:, : self.code_bytes] if self.scale_last else blocks[:, width:]
        codes = self.unpack(packed)
        sound = (codes <= self.count - 1).all(1) & scale.float().isfinite()
        return codes, scale, sound & (self.pack(codes) == packed).all(1)


def _pack_tq1(codes: Tensor) -> Tensor:
    runs = (
        (codes[:, :160].reshape(-1, 5, 32), _FIVE_TRITS),
        (codes[:, 160:240].reshape(-1, 5, 16), _FIVE_TRITS),
        (codes[:, 240:].reshape(-1, 4, 4), _FOUR_TRITS),
    )
    numbers = [
        (digits.int() * torch.tensor(powers).reshape(1, -1, 1)).sum(1) for digits, powers in runs
    ]
    # rounded up to 256ths of 243, so that the top bits of byte * 3^n are the digits
    return ((torch.cat(numbers, 1) * 256 + 242) // 243).to(torch.uint8)


def _unpack_tq1(packed: Tensor) -> Tensor:
    runs = ((packed[:, :32], 5), (packed[:, 32:48], 5), (packed[:, 48:], 4))
    digits: list[Tensor] = []
    for column, count in runs:
        powers = 3 ** torch.arange(count).reshape(1, -1, 1)
        shifted = (column.int().unsqueeze(1) * powers) & 255
        digits.append(((shifted * 3) >> 8).flatten(1))
    return torch.cat(digits, 1).to(torch.uint8)


def _pack_planes(codes: Tensor, planes: int, run: int) -> Tensor:
    """Codes of 8 / planes bits; byte i of a run holds codes i, i + run, i + 2 run, .. of it."""
    width = 8 // planes
    grouped = codes.reshape(codes.shape[0], -1, planes, run)
    packed = torch.zeros_like(grouped[:, :, 0])
    for plane in range(planes):
        packed |= grouped[:, :, plane] << (width * plane)
    return packed.flatten(1)


def _unpack_planes(packed: Tensor, planes: int, run: int) -> Tensor:
    width = 8 // planes
    grouped = packed.reshape(packed.shape[0], -1, 1, run)
    shifts = torch.arange(0, 8, width, dtype=torch.uint8).reshape(1, 1, planes, 1)
    return ((grouped >> shifts) & ((1 << width) - 1)).flatten(1)


def _pack_q5(codes: Tensor) -> Tensor:
    """The fifth bits of all codes first, code i's at bit i; then nibbles as in Q4_0."""
    places = torch.arange(8, dtype=torch.uint8)
    fifth = ((codes >> 4).reshape(-1, 4, 8) << places).sum(2).to(torch.uint8)
    return torch.cat((fifth, _pack_planes(codes & 15, 2, 16)), 1)


def _unpack_q5(packed: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8)
    fifth = ((packed[:, :4, None] >> places) & 1).flatten(1)
    return (fifth << 4) | _unpack_planes(packed[:, 4:], 2, 16)


_BLOCKS = (
    CodeBlocks(
        name="TQ1_0",
        number=34,
        weights=256,
        lowest=-1,
        highest=1,
        code_bytes=52,
        activation_block=256,
        scale_last=True,
        pack=_pack_tq1,
        unpack=_unpack_tq1,
    ),
    CodeBlocks(
        name="TQ2_0",
        number=35,
        weights=256,
        lowest=-1,
        highest=1,
        code_bytes=64,
        activation_block=256,
        scale_last=True,
        pack=lambda codes: _pack_planes(codes, 4, 32),
        unpack=lambda packed: _unpack_planes(packed, 4, 32),
    ),
    CodeBlocks(
        name="Q2_0",
        number=42,
        weights=64,
        lowest=-1,
        highest=2,
        code_bytes=16,
        activation_block=32,
        scale_last=False,
        pack=lambda codes: _pack_planes(codes, 4, 1),
        unpack=lambda packed: _unpack_planes(packed, 4, 1),
    ),
    CodeBlocks(
        name="MXFP4",
        number=39,
        weights=32,
        lowest=-6,
        highest=6,
        code_bytes=16,
        activation_block=32,
        scale_last=False,
        pack=lambda codes: _pack_planes(codes, 2, 16),
        unpack=lambda packed: _unpack_planes(packed, 2, 16),
        element="fp4_e2m1",
        scale_dtype=torch.float8_e8m0fnu,
    ),
    CodeBlocks(
        name="Q4_0",
        number=2,
        weights=32,
        lowest=-8,
        highest=7,
        code_bytes=16,
        activation_block=32,
        scale_last=False,
        pack=lambda codes: _pack_planes(codes, 2, 16),
        unpack=lambda packed: _unpack_planes(packed, 2, 16),
    ),
    CodeBlocks(
        name="Q5_0",
        number=6,
        weights=32,
        lowest=-16,
        highest=15,
        code_bytes=20,
        activation_block=32,
        scale_last=False,
        pack=_pack_q5,
        unpack=_unpack_q5,
    ),
    CodeBlocks(
        name="Q8_0",
        number=8,
        weights=32,
        lowest=-128,
        highest=127,
        code_bytes=32,
        activation_block=32,
        scale_last=False,
        # stored as signed bytes: the number itself, not number + 128
        pack=lambda codes: codes ^ 128,
        unpack=lambda packed: packed ^ 128,
    ),
)

CODE_BLOCKS: dict[str, CodeBlocks] = {blocks.name: blocks for blocks in _BLOCKS}
"""From the densest on."""

CODE_BLOCKS_BY_NUMBER: dict[int, CodeBlocks] = {blocks.number: blocks for blocks in _BLOCKS}
