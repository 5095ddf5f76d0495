"""Shards: the part of a packed weight that one rank of a tensor-parallel group multiplies by.

A byte of base 3 holds five weights and a word of base 9 too, and the columns of a rank are seldom a
multiple of five: 14336 / 8 = 1792 of Llama-3-8B's down_proj. So bytes are never cut: the codes are
unpacked, cut, and packed again for the rank alone, each row from a byte of its own. Scales follow
their groups; where a boundary falls inside of one, the groups become as small as it takes and the
scale is repeated. Nothing is rounded: the shards side by side are the weight, to the bit.
"""

from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import Granularity, PackedTensor, Scheme, storage


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


def shard_of(
    shape: tuple[int, int], local: tuple[int, int], rank: int, ranks: int, module: str
) -> Shard:
    """The shard of W [N, K] that rank `rank` of `ranks` holds, of the shape `local`.

    Ranks share out rows or columns in order. Rows that are not enough for all are repeated: eight
    key heads on sixteen ranks give each head to two neighbours, as vLLM does.

    Raises:
        UnsupportedError: the weight cannot be shared out so.
    """
    (rows, columns), (local_rows, local_columns) = shape, local
    copies, left = divmod(local_rows * ranks, rows) if rows else (1, 0)
    fits = copies >= 1 and not left and ranks % copies == 0
    if not fits or local_columns not in (columns, columns // ranks) or columns % local_columns:
        raise UnsupportedError(
            f"{module}: a weight {list(shape)} cannot be shared out over {ranks} ranks as "
            f"{list(local)} each: choose a tensor-parallel size that divides its heads and columns"
        )
    first_row = rank // copies * local_rows
    first_column = rank * local_columns if local_columns < columns else 0
    return Shard(
        first_row=first_row,
        end_row=first_row + local_rows,
        first_column=first_column,
        end_column=first_column + local_columns,
    )


def cut(weight: PackedTensor, shard: Shard) -> PackedTensor:
    """That part of the weight, in storage form of its own: same values, same scales."""
    scheme = _scheme(weight.scheme, weight.shape, shard)
    codes = weight.codes[shard.first_row : shard.end_row]
    if shard.shape[1] < weight.shape[1]:
        whole = weight.scheme.storage.unpack(codes, weight.shape[1])
        codes = scheme.storage.pack(whole[:, shard.first_column : shard.end_column])
    return PackedTensor(
        codes=codes.contiguous(),
        scale=_blocks(weight.scale, weight, scheme, shard),
        zero=_blocks(weight.zero, weight, scheme, shard) if weight.zero is not None else None,
        second=weight.second,
        scheme=scheme,
        shape=shard.shape,
    )


def _scheme(scheme: Scheme, shape: tuple[int, int], shard: Shard) -> Scheme:
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
