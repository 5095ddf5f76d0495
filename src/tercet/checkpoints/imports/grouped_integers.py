"""GroupedIntegers: a weight as GPTQ and AWQ hold it, before its bits are put into words."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import CheckpointError
from tercet.formats import Granularity, PackedTensor, Scheme, from_codes


@dataclass(frozen=True, kw_only=True)
class GroupedIntegers:
    """W[n, k] = (values[n, k] - zero[n, g]) scale[n, g], where K / groups neighbours share a g.

    Attributes:
        values: int16 [N, K].
        zero: int16 [N, groups]; 0 throughout for a symmetric weight.
        scale: floating point [N, groups].
    """

    values: Tensor
    zero: Tensor
    scale: Tensor


def to_integers(weight: PackedTensor, groups: int, dtype: torch.dtype) -> GroupedIntegers:
    """The integers of a packed weight; scales and zero points are repeated, never computed anew.

    Args:
        weight: of an integer element, with scales per tensor, channel or group.
        groups: of a row, a multiple of the scheme's own.
        dtype: of the scales; it holds every one of them exactly.
    """
    rows = weight.shape[0]
    values = weight.unpack().to(torch.int16) + int(weight.scheme.element.lowest)
    zero = torch.zeros_like(weight.scale, dtype=torch.int16)
    if weight.zero is not None:
        zero = weight.zero.to(torch.int16)
    return GroupedIntegers(
        values=values,
        zero=_repeat(zero, rows, groups),
        scale=_repeat(weight.scale.to(dtype), rows, groups),
    )


def _repeat(found: Tensor, rows: int, groups: int) -> Tensor:
    every = groups // max(found.shape[1], 1)
    return found.repeat_interleave(every, dim=1).expand(rows, groups).contiguous()


def from_integers(found: GroupedIntegers, scheme: Scheme, module: str) -> PackedTensor:
    """The packed weight of that scheme whose `to_integers` these are.

    Raises:
        CheckpointError: a value that the scheme has no level for, or another number of groups.
    """
    shape = (found.values.shape[0], found.values.shape[1])
    element, groups = scheme.element, scheme.scaling.scale_shape(shape)[1]
    codes = found.values - int(element.lowest)
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < len(element.levels):
        low, high = int(found.values.min()), int(found.values.max())
        raise CheckpointError(
            f"{module}: values from {low} to {high}, {element.name} has {element.lowest:.0f} to "
            f"{element.highest:.0f}: the file is damaged or was changed"
        )
    if found.scale.shape[1] % max(groups, 1):
        raise CheckpointError(
            f"{module}: {found.scale.shape[1]} scales a row, {groups} belong there or a multiple "
            f"of that: the file is damaged or was changed"
        )
    rows = 1 if scheme.scaling.granularity is Granularity.TENSOR else shape[0]
    every = max(found.scale.shape[1] // max(groups, 1), 1)
    scale = found.scale[:rows, ::every].to(scheme.scaling.torch_dtype)
    zero = None if scheme.scaling.zero is None else found.zero[:rows, ::every].to(torch.int8)
    return from_codes(codes.to(torch.uint8), scheme, scale, zero)
