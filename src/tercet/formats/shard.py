"""Shards: the part of a packed weight that one rank of a tensor-parallel group multiplies by.

A byte of base 3 holds five weights and a word of base 9 too, and the columns of a rank are seldom a
multiple of five: 14336 / 8 = 1792 of Llama-3-8B's down_proj. So where a boundary falls inside of a
unit, the codes are unpacked, cut, and packed again for the rank alone, each row from a byte of its
own. Scales follow their groups; where a boundary falls inside of one, the groups become as small as
it takes and the scale is repeated. Nothing is rounded: the shards side by side are the weight, to
the bit.
"""

from dataclasses import dataclass, replace
from math import ceil, gcd

import torch
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats.chunks import chunk_rows
from tercet.formats.packed import PackedTensor
from tercet.formats.scaling import Granularity
from tercet.formats.scheme import Scheme
from tercet.formats.storage import Storage, storage

_CODES_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Rows first_row .. end_row - 1 and columns first_column .. end_column - 1 of W [N, K]."""

    first_row: int
    end_row: int
    first_column: int
    end_column: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.end_row - self.first_row, self.end_column - self.first_column


def cut(weight: PackedTensor, shard: Shard, name: str = "tensor") -> PackedTensor:
    """That part of the weight, in storage form of its own: same values, same scales.

    Args:
        weight: may lie in a mapped file: what is not of the part is not read.
        shard: which part.
        name: the weight's in errors.

    Raises:
        FormatError: bytes that are packed anew are no codes.
    """
    scheme = cut_scheme(weight.scheme, weight.shape, shard)
    codes = weight.codes[shard.first_row : shard.end_row]
    if shard.shape[1] < weight.shape[1]:
        codes = _cut_codes(weight, scheme.storage, codes, shard, name)
    return PackedTensor(
        codes=codes.contiguous(),
        scale=_blocks(weight.scale, weight, scheme, shard),
        zero=_blocks(weight.zero, weight, scheme, shard) if weight.zero is not None else None,
        second=weight.second,
        scheme=scheme,
        shape=shard.shape,
    )


def _cut_codes(
    weight: PackedTensor, target: Storage, codes: Tensor, shard: Shard, name: str
) -> Tensor:
    """Codes of the shard's columns from those of its rows, in the storage `target`."""
    stored, start, end = weight.scheme.storage, shard.first_column, shard.end_column
    unit = stored.unit_codes
    first, last = start // unit, ceil(end / unit)
    units = codes[:, first * stored.unit_bytes : last * stored.unit_bytes].contiguous()
    ends = end % unit == 0 or end == weight.shape[1]
    if stored == target and start % unit == 0 and ends:
        return units
    # packed anew, bytes that are no words would look like words
    if broken := stored.invalid_words(units):
        raise FormatError(f"{name}.packed: {broken} words are none of storage {stored.name!r}")
    left, packs = start - first * unit, list[Tensor]()
    # some rows at a time, for packing takes several bytes a code
    for part in chunk_rows(len(units), max(_CODES_AT_ONCE // (end - start), 1)) or [slice(0)]:
        found = stored.unpack(units[part], (last - first) * unit)
        packs.append(target.pack(found[:, left : left + end - start]))
    return torch.cat(packs)


def cut_scheme(scheme: Scheme, shape: tuple[int, int], shard: Shard) -> Scheme:
    """The scheme of the shard: with smaller groups where a boundary falls inside of one."""
    scaling = scheme.scaling
    if scaling.granularity is Granularity.BLOCK and shard.first_row % (scaling.block_rows or 1):
        scaling = replace(scaling, granularity=Granularity.GROUP, block_rows=None)
    if scaling.group_size is not None:
        end = 0 if shard.end_column == shape[1] else shard.end_column
        scaling = replace(scaling, group_size=gcd(scaling.group_size, shard.first_column, end))
    stored = scheme.storage
    if stored.name.startswith("sparse") and shard.shape[1] < shape[1]:
        stored = storage(scheme.element.storage)
    return replace(scheme, scaling=scaling, storage=stored)


def _blocks(blocks: Tensor, weight: PackedTensor, scheme: Scheme, shard: Shard) -> Tensor:
    """Scales or zero points of the shard: those of the first weight of each of its blocks."""
    rows, columns = weight.scheme.scaling.block(weight.shape)
    own_rows, own_columns = scheme.scaling.block(shard.shape)
    row = torch.arange(shard.first_row, shard.end_row, own_rows) // rows
    column = torch.arange(shard.first_column, shard.end_column, own_columns) // columns
    return blocks[row.to(blocks.device)][:, column.to(blocks.device)].contiguous()
