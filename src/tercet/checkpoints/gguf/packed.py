"""The codes and scales of a GGUF tensor as a PackedTensor: nothing is rounded, nothing is lost."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tercet.checkpoints.gguf.blocks import read_code_blocks
from tercet.checkpoints.gguf.codes import CODE_BLOCKS_BY_NUMBER, CodeBlocks
from tercet.checkpoints.gguf.header import GgufTensor, damage_error
from tercet.errors import FormatError
from tercet.formats import PackedTensor, Scheme, parse_scheme
from tercet.formats.encode import from_codes

_PIECE_BLOCKS = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A weight [N, K] as whole numbers times the scales of its blocks of columns.

    Attributes:
        numbers: int16 [N, K].
        scale: float16 [N, K / block], 0 or more.
        negative: bool like scale: which blocks the file holds with a scale below zero, their
            numbers negated; here both are turned round.
    """

    numbers: Tensor
    scale: Tensor
    negative: Tensor


def read_numbers(path: Path, name: str, tensor: GgufTensor) -> Numbers:
    """A tensor [N, K] in one of the types of CODE_BLOCKS.

    Raises:
        CheckpointError: a scale is not finite, or bytes are no word of that type.
    """
    codes, scale, layout = _read_codes(path, name, tensor)
    negative = scale.signbit()
    numbers = codes.to(torch.int16) + layout.lowest
    numbers = torch.where(negative.unsqueeze(1), -numbers, numbers)
    rows = tensor.shape[0]
    return Numbers(
        numbers=numbers.reshape(tensor.shape),
        scale=scale.abs().reshape(rows, -1),
        negative=negative.reshape(rows, -1),
    )


def read_floats(path: Path, name: str, tensor: GgufTensor) -> tuple[Tensor, Tensor]:
    """A tensor [N, K] in MXFP4: uint8 codes [N, K] and scales e8m0 [N, K / 32].

    Raises:
        CheckpointError: a scale is NaN.
    """
    codes, scale, _ = _read_codes(path, name, tensor)
    return codes.reshape(tensor.shape), scale.reshape(tensor.shape[0], -1)


def _read_codes(path: Path, name: str, tensor: GgufTensor) -> tuple[Tensor, Tensor, CodeBlocks]:
    """uint8 codes [blocks, weights of one], scales [blocks], and the type of the blocks."""
    layout = CODE_BLOCKS_BY_NUMBER[tensor.kind.number]
    blocks = read_code_blocks(path, tensor)
    found = torch.empty(len(blocks), layout.weights, dtype=torch.uint8)
    scale = torch.empty(len(blocks), dtype=layout.scale_dtype)
    for first in range(0, len(blocks), _PIECE_BLOCKS):
        part = slice(first, first + _PIECE_BLOCKS)
        found[part], scale[part], sound = layout.decode(blocks[part])
        if not bool(sound.all()):
            raise damage_error(path, _unsound(name, layout, first + int((~sound).nonzero()[0])))
    return found, scale, layout


def _unsound(name: str, layout: CodeBlocks, block: int) -> str:
    return (
        f"tensor {name!r}: block {block:,} is no block of {layout.name} (its scale is not finite, "
        f"or its codes are none of {layout.count})"
    )


def to_packed(found: Numbers, kind: str) -> PackedTensor:
    """The weight in the scheme that a type stands for, scales and numbers as they are.

    TQ1_0 and TQ2_0 are ternary in groups of 256, in base 3 and in 2 bits; Q4_0 is int4, Q5_0 int5
    and Q8_0 int8 in groups of 32; Q2_0 is ternary in groups of 64 unless it holds its fourth
    number, 2.
    Signs of scales become zero points where only so all numbers have a code: 7 - zero = 8 in Q4_0.

    Raises:
        FormatError: a Q8_0 block with a negative scale holds -128.
    """
    negative = found.negative
    match kind:
        case "TQ1_0" | "TQ2_0":
            return _pack(found, "ternary-g256" if kind == "TQ1_0" else "ternary-g256-bits2")
        case "Q2_0":
            if int(found.numbers.abs().max()) <= 1:
                return _pack(found, "ternary-g64")
            return _pack(found, "int2-g64-asym", negative.to(torch.int8) - 1)
        case "Q4_0" | "Q5_0":
            name = "int4-g32" if kind == "Q4_0" else "int5-g32"
            if not bool(negative.any()):
                return _pack(found, name)
            return _pack(found, f"{name}-asym", -negative.to(torch.int8))
        case _:
            return _pack(found, "int8-g32")


def _pack(found: Numbers, name: str, zero: Tensor | None = None) -> PackedTensor:
    scheme = parse_scheme(name)
    numbers = found.numbers
    if zero is not None:
        width = numbers.shape[1] // zero.shape[1]
        numbers = numbers + zero.repeat_interleave(width, 1)
    return from_codes(_codes(numbers, scheme), scheme, found.scale, zero)


def to_noted_scheme(found: Numbers, scheme: Scheme) -> PackedTensor:
    """The weight in the scheme that it was exported from, its repeated scales held once again.

    Raises:
        FormatError: the numbers or the scales are none of that scheme.
    """
    shape = (found.numbers.shape[0], found.numbers.shape[1])
    width = shape[1] // found.scale.shape[1]
    shared = scheme.scaling.block(shape)[1]
    if shared % width and shared < shape[1]:
        raise FormatError(f"its blocks of {width} share one scale, {scheme.name!r} has {shared}")
    rows, columns = scale_index(scheme, shape, width)
    once = torch.zeros(scheme.scaling.scale_shape(shape), dtype=torch.float16)
    once[rows[:, None], columns[None]] = found.scale
    if not torch.equal(once[rows][:, columns], found.scale):
        raise FormatError("its scales differ within one group")
    scale = once.to(scheme.scaling.torch_dtype)
    return from_codes(_codes(found.numbers, scheme), scheme, scale)


def scale_index(scheme: Scheme, shape: tuple[int, int], width: int) -> tuple[Tensor, Tensor]:
    """Which scale (row, column) belongs to each row, and to each block of `width` columns."""
    rows, columns = scheme.scaling.block(shape)
    return torch.arange(shape[0]) // rows, torch.arange(0, shape[1], width) // columns


def _codes(numbers: Tensor, scheme: Scheme) -> Tensor:
    codes = numbers - int(scheme.element.lowest)
    if int(codes.min()) < 0 or int(codes.max()) >= len(scheme.element.levels):
        raise FormatError(
            f"it holds numbers from {int(numbers.min())} to {int(numbers.max())}, "
            f"{scheme.element.name} those from {scheme.element.lowest:.0f} to "
            f"{scheme.element.highest:.0f}"
        )
    return codes.to(torch.uint8)
