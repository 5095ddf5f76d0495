"""A rank's part of a weight: the same values, of fewer rows or columns."""

from dataclasses import replace

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.formats import Granularity, PackedTensor
from tercet.formats.shard import Shard, cut, cut_scheme
from tercet.models.decoder.tensor_parallel.cut import Cut


def find_misfit(entry: PackedModule, part: Cut) -> str | None:
    """What a part of a packed module would cut through; None where it can be cut so."""
    size, columns = entry.hadamard, part.columns
    if columns is not None and size is not None and (columns.start % size or columns.stop % size):
        return f"blocks of {size} columns that its input is rotated in"
    rows = entry.scheme.scaling.block_rows or 1
    # a single run has smaller blocks, runs of different blocks are not one weight
    if len(part.rows) > 1 and any(each.start % rows or each.stop % rows for each in part.rows):
        return f"blocks of {rows} rows that share a scale"
    return None


def cut_entry(entry: PackedModule, part: Cut) -> PackedModule:
    """How a part of a packed module is stored."""
    shard = _shards(entry.shape, part)[0]
    form = cut_scheme(entry.scheme, entry.shape, shard).name
    return entry.model_copy(update={"format": form, "shape": part.shape_of(entry.shape)})


def cut_packed(weight: PackedTensor, part: Cut, name: str) -> PackedTensor:
    """A part of a packed weight, that has no misfit.

    Args:
        weight: whole; what is not in the part is not read.
        part: of it.
        name: the weight's in errors.

    Raises:
        FormatError: codes of the part are none.
    """
    runs = [cut(weight, shard, name) for shard in _shards(weight.shape, part)]
    first, zeros = runs[0], [run.zero for run in runs if run.zero is not None]
    if len(runs) == 1:
        return first
    whole = replace(
        first, codes=torch.cat([run.codes for run in runs]), shape=part.shape_of(weight.shape)
    )
    if weight.scheme.scaling.granularity is Granularity.TENSOR:
        return whole
    return replace(
        whole,
        scale=_put_together([run.scale for run in runs]),
        zero=_put_together(zeros) if zeros else None,
    )


def take_rows(x: Tensor, rows: tuple[range, ...]) -> Tensor:
    """Rows [N'] or [N', K] of x, one run after the other, in memory of their own."""
    return torch.cat([x[run.start : run.stop] for run in rows])


def _shards(shape: tuple[int, int], part: Cut) -> list[Shard]:
    columns = part.columns or range(shape[1])
    return [
        Shard(
            first_row=rows.start,
            end_row=rows.stop,
            first_column=columns.start,
            end_column=columns.stop,
        )
        for rows in part.rows or (range(shape[0]),)
    ]


def _put_together(scales: list[Tensor]) -> Tensor:
    """Scales or zero points of runs of rows."""
    # as bytes, since torch puts no 8-bit floats one after the other
    return torch.cat([scale.view(torch.uint8) for scale in scales]).view(scales[0].dtype)
