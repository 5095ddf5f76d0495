"""A part of a packed weight: the same codes and scales, of fewer rows or columns."""

from dataclasses import replace
from math import ceil, lcm

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import FormatError
from tercet.formats import PackedTensor, Scheme
from tercet.formats.scaling import Granularity
from tercet.formats.storage import Storage
from tercet.models.decoder.tensor_parallel.cut import Cut


def find_misfit(entry: PackedModule, cut: Cut) -> str | None:
    """What a part of a packed module would cut through; None where it is whole."""
    scheme = entry.scheme
    rows, group = _scale_block(scheme)
    if any(each.start % rows or each.stop % rows for each in cut.rows):
        return f"blocks of {rows} rows that share a scale"
    columns = cut.columns
    if columns is None:
        return None
    # within one group a part may begin anywhere
    if columns.start % group and columns.start // group != (columns.stop - 1) // group:
        return f"groups of {group} columns that share a scale"
    together = lcm(entry.hadamard or 1, scheme.storage.pattern_codes)
    if columns.start % together or columns.stop % together:
        return f"blocks of {together} columns that belong together in its rotation or storage"
    return None


def cut_packed(weight: PackedTensor, cut: Cut, name: str) -> PackedTensor:
    """The part of a packed weight, which has no misfit; views of its tensors where they can be.

    Args:
        weight: whole; what is not in the part is not read.
        cut: the part.
        name: the weight's in errors.

    Raises:
        FormatError: codes of the part are none of its storage.
    """
    scheme, shape = weight.scheme, cut.shape_of(weight.shape)
    block_rows, group = _scale_block(scheme)
    codes, scale, zero = weight.codes, weight.scale, weight.zero
    if cut.rows:
        codes = take_rows(codes, cut.rows)
        if scheme.scaling.granularity is not Granularity.TENSOR:
            blocks = tuple(range(r.start // block_rows, r.stop // block_rows) for r in cut.rows)
            scale = take_rows(scale, blocks)
            zero = None if zero is None else take_rows(zero, blocks)
    if cut.columns is not None:
        codes = _take_codes(scheme.storage, codes, cut.columns, weight.shape[1], name)
        if scheme.scaling.group_size is not None:
            groups = slice(cut.columns.start // group, ceil(cut.columns.stop / group))
            scale = scale[:, groups].contiguous()
            zero = None if zero is None else zero[:, groups].contiguous()
    return replace(weight, codes=codes, scale=scale, zero=zero, shape=shape)


def take_rows(x: Tensor, rows: tuple[range, ...]) -> Tensor:
    """Rows [N'] or [N', ..] of x, one run after the other; a view of a single run."""
    runs = [x[run.start : run.stop] for run in rows]
    if len(runs) == 1:
        return runs[0]
    # as bytes, since torch puts no 8-bit floats one after the other
    return torch.cat([run.contiguous().view(torch.uint8) for run in runs]).view(x.dtype)


def _scale_block(scheme: Scheme) -> tuple[int, int]:
    """Rows and columns that a cut may not divide, since they share a scale among others."""
    return scheme.scaling.block_rows or 1, scheme.scaling.group_size or 1


def _take_codes(storage: Storage, codes: Tensor, columns: range, count: int, name: str) -> Tensor:
    """Codes of some of `count` columns, as they are stored; packed anew where units are cut."""
    unit = storage.unit_codes
    first, last = columns.start // unit, ceil(columns.stop / unit)
    units = codes[:, first * storage.unit_bytes : last * storage.unit_bytes].contiguous()
    if columns.start % unit == 0 and (columns.stop % unit == 0 or columns.stop == count):
        return units
    # packed anew, bytes that are no words would look like words
    if broken := storage.invalid_words(units):
        raise FormatError(f"{name}.packed: {broken} words are none of storage {storage.name!r}")
    held = storage.unpack(units, (last - first) * unit)
    start = columns.start - first * unit
    return storage.pack(held[:, start : start + len(columns)])
