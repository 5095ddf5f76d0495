"""The tensors of a packed checkpoint as GGUF entries: codes as they are, the rest without loss."""

from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod
from typing import cast

import torch
from torch import Tensor

from tercet.checkpoints.gguf.architectures import GgufArchitecture
from tercet.checkpoints.gguf.codes import CODE_BLOCKS, CodeBlocks
from tercet.checkpoints.gguf.names import (
    ROPE_DIVISORS,
    gguf_name,
    hugging_face_names,
    is_stacked,
)
from tercet.checkpoints.gguf.packed import scale_index
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError
from tercet.export.gguf.container import TensorEntry
from tercet.export.gguf.fit import must_negate
from tercet.formats import PackedTensor
from tercet.models.decoder.config import DecoderConfig

# about 8 MiB of codes at a time
_PIECE_CODES = 1 << 23
_NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}


def pairs_from_halves(rows: int, heads: int) -> Tensor:
    """Which row of the model lies at each row of the file: the order that llama's converter makes.

    Row (h, 2i + j) of the file is row (h, j * d/2 + i) of the model, d = rows / heads.
    """
    size = rows // heads
    return torch.arange(rows).reshape(heads, 2, size // 2).transpose(1, 2).reshape(rows)


class Entries:
    """Makes the entries of one checkpoint.

    Args:
        checkpoint: what to export.
        architecture: GGUF's names.
        sizes: of the model.
        kinds: type of each packed module; None writes the twin, everything in float32.
    """

    def __init__(
        self,
        checkpoint: PackedCheckpoint,
        architecture: GgufArchitecture,
        sizes: DecoderConfig,
        kinds: Mapping[str, str] | None,
    ) -> None:
        self.checkpoint = checkpoint
        self.architecture = architecture
        self.sizes = sizes
        self.kinds = kinds or {}
        self.twin = kinds is None

    def all(self, divisors: Tensor | None) -> list[TensorEntry]:
        """Every tensor: packed modules, then the rest, then the divisors of rotary frequencies."""
        modules = {f"{module}.weight": module for module in self.checkpoint.modules}
        plain = [name for name in self.checkpoint.names() if not name.endswith("inv_freq")]
        parts: dict[str, dict[str, TensorEntry]] = {}
        for name in (*modules, *(name for name in plain if not self._is_tied(name))):
            entry = self._module(modules[name]) if name in modules else self._plain(name)
            parts.setdefault(entry.name, {})[name] = entry
        entries = [self._join(stored, found) for stored, found in parts.items()]
        if divisors is not None:
            entries.append(self._divisors(divisors))
        return entries

    def _join(self, stored: str, parts: Mapping[str, TensorEntry]) -> TensorEntry:
        """One tensor of its parts: itself, or the matrices of all experts of a layer."""
        if not is_stacked(stored, self.architecture):
            (only,) = parts.values()
            return only
        experts = None if self.sizes.mixture is None else self.sizes.mixture.experts
        names = hugging_face_names(stored, self.architecture, experts)
        if set(parts) != set(names):
            raise UnsupportedError(
                f"{len(parts)} matrices are there for {stored!r}, of {len(names)} experts"
            )
        entries = [parts[name] for name in names]
        first = entries[0]
        if {(one.number, one.shape) for one in entries} != {(first.number, first.shape)}:
            raise UnsupportedError(
                f"the experts of {stored!r} are not held alike, and llama.cpp has one type for "
                f"all of a layer: compress them to one format"
            )
        return TensorEntry(
            name=stored,
            shape=(len(entries), *first.shape),
            number=first.number,
            size_bytes=sum(one.size_bytes for one in entries),
            chunks=lambda: chain.from_iterable(one.chunks() for one in entries),
        )

    def _is_tied(self, name: str) -> bool:
        return self.sizes.tied and name == "lm_head.weight"

    def _name(self, name: str) -> str:
        found = gguf_name(name, self.architecture)
        if found is None:
            raise UnsupportedError(
                f"tensor {name!r} has no place in this GGUF architecture: export to huggingface"
            )
        return found

    def order(self, name: str, rows: int) -> Tensor | None:
        """The order of a tensor's rows in the file, None where they stay."""
        if not self.architecture.rotated:
            return None
        if name.endswith("self_attn.q_proj.weight"):
            return pairs_from_halves(rows, self.sizes.heads)
        if name.endswith("self_attn.k_proj.weight"):
            return pairs_from_halves(rows, self.sizes.key_value_heads)
        return None

    def _module(self, module: str) -> TensorEntry:
        name = f"{module}.weight"
        shape = self.checkpoint.modules[module].shape
        order = self.order(name, shape[0])
        if self.twin:
            return TensorEntry(
                name=self._name(name),
                shape=shape,
                number=_NUMBERS[torch.float32],
                size_bytes=4 * shape[0] * shape[1],
                chunks=lambda: [_bytes(_reorder_rows(self._dequantize(module), order))],
            )
        blocks = CODE_BLOCKS[self.kinds[module]]
        return TensorEntry(
            name=self._name(name),
            shape=shape,
            number=blocks.number,
            size_bytes=shape[0] * shape[1] // blocks.weights * blocks.size_bytes,
            chunks=lambda: encode_blocks(self.checkpoint.read_packed(module), blocks, order),
        )

    def _dequantize(self, module: str) -> Tensor:
        return self.checkpoint.read_packed(module).dequantize()

    def _plain(self, name: str) -> TensorEntry:
        dtype, shape = self.checkpoint.layout[name]
        # llama.cpp adds and multiplies vectors (norms, biases) in float32 only
        wide = len(shape) == 1 or self.twin or dtype not in _NUMBERS
        stored = torch.float32 if wide else dtype
        order = self.order(name, shape[0])
        return TensorEntry(
            name=self._name(name),
            shape=shape,
            number=_NUMBERS[stored],
            size_bytes=prod(shape) * stored.itemsize,
            chunks=lambda: [_bytes(_reorder_rows(self._values(name), order).to(stored))],
        )

    def _values(self, name: str) -> Tensor:
        values, offset = self.checkpoint.tensor(name), self.architecture.norm_offset
        return values.float() + offset if offset and self.architecture.is_norm(name) else values

    def _divisors(self, divisors: Tensor) -> TensorEntry:
        return TensorEntry(
            name=ROPE_DIVISORS,
            shape=tuple(divisors.shape),
            number=_NUMBERS[torch.float32],
            size_bytes=4 * divisors.numel(),
            chunks=lambda: [_bytes(divisors)],
        )


def encode_blocks(
    weight: PackedTensor, blocks: CodeBlocks, order: Tensor | None
) -> Iterator[bytes]:
    """The blocks of a packed weight, some rows at a time.

    Args:
        weight: what `fit.holding` found to be held by such blocks.
        blocks: the type.
        order: which row of the weight lies at each row of the file.
    """
    rows, columns = weight.shape
    at_row, at_block = scale_index(weight.scheme, weight.shape, blocks.weights)
    order = torch.arange(rows) if order is None else order
    step = max(1, _PIECE_CODES // max(columns, 1))
    for first in range(0, rows, step):
        taken = order[first : first + step]
        codes = weight.scheme.storage.unpack(weight.codes[taken], columns)
        # adding 0 makes a scale of -0 a scale of 0, whose sign bit would turn the numbers
        scale = weight.scale[at_row[taken]][:, at_block].float() + 0.0
        zero = None if weight.zero is None else weight.zero[at_row[taken]][:, at_block]
        yield _bytes(_blocks(codes, scale, zero, weight, blocks))


def _blocks(
    codes: Tensor, scale: Tensor, zero: Tensor | None, weight: PackedTensor, blocks: CodeBlocks
) -> Tensor:
    """uint8 blocks of codes [R, K] with scales and zero points [R, K / blocks.weights]."""
    if blocks.element is not None:
        stored = scale.to(blocks.scale_dtype).flatten()
        return blocks.encode(codes.reshape(-1, blocks.weights), stored)
    element = weight.scheme.element
    low, high = int(element.lowest), int(element.highest)
    numbers = codes.reshape(*scale.shape, blocks.weights).to(torch.int16) + low
    points = torch.zeros(scale.shape, dtype=torch.int16) if zero is None else zero.to(torch.int16)
    negated = torch.zeros(scale.shape, dtype=torch.bool)
    for point in cast(list[int], points.unique().tolist()):
        negated |= (points == point) & bool(must_negate(low, high, point, blocks))
    numbers -= points.unsqueeze(-1)
    numbers = torch.where(negated.unsqueeze(-1), -numbers, numbers) - blocks.lowest
    signed = torch.where(negated, -scale, scale).to(torch.float16)
    return blocks.encode(numbers.to(torch.uint8).flatten(0, 1), signed.flatten())


def _reorder_rows(tensor: Tensor, order: Tensor | None) -> Tensor:
    return tensor if order is None else tensor[order]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
