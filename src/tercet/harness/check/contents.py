"""Contents: arguments that differ from others in little, for calls at the same addresses."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from tercet.formats import PackedTensor
from tercet.harness.sandbox.bits import same_bits

Values = dict[str, Any]


def alike(a: Values, b: Values) -> bool:
    """Whether one can be copied to the addresses of the other: shapes and strides agree."""
    return all(
        a[name].shape == b[name].shape and a[name].stride() == b[name].stride()
        if isinstance(a[name], Tensor)
        else not isinstance(b[name], Tensor)
        for name in a
    )


def unchanged(a: Tensor, b: Any) -> bool:
    """Whether an op's `prepare` leaves an argument as it is."""
    return isinstance(b, Tensor) and same_bits(a, b)


def parts_of(value: Any) -> list[str]:
    """The tensors that a packed weight, or each of several, is made of."""
    if isinstance(value, tuple):
        value = cast("tuple[Any, ...]", value)
        return parts_of(value[0]) if value else []
    return list(value.parts()) if isinstance(value, PackedTensor) else []


def with_part(value: Any, part: str, other: Any) -> Any:
    """A packed weight with that one of another's parts, or several with those of others."""
    if isinstance(value, tuple):
        pairs = zip(cast("tuple[Any, ...]", value), other, strict=True)
        return tuple(with_part(one, part, two) for one, two in pairs)
    field = "codes" if part == "packed" else part
    return replace(value, **{field: getattr(other, field)})


def change_one(value: Tensor, seed: int) -> Tensor | None:
    """One element of a matrix is another one of it; None where they are all the same."""
    if value.dim() < 2 or value.numel() < 2:
        return None
    flat = value.flatten().clone()
    at = seed % len(flat)
    numbers = flat.float()
    different = (numbers != numbers[at]).nonzero().flatten()
    if not len(different):
        return None
    flat[at] = flat[different[seed % len(different)]]
    return _laid_as(value, flat.reshape(value.shape))


def swap_rows(value: Tensor, seed: int) -> Tensor | None:
    """Two rows of a matrix change places; None where there is one."""
    if value.dim() < 2 or len(value) < 2:
        return None
    order = torch.arange(len(value))
    first, second = seed % len(value), (seed // 7 + 1) % len(value)
    order[[first, second]] = order[[second, first]]
    return _laid_as(value, value[order])


def _laid_as(value: Tensor, changed: Tensor) -> Tensor:
    """In the strides of the first contents, whose memory they are written to."""
    if any(size > 1 and not step for size, step in zip(value.shape, value.stride(), strict=True)):
        return changed
    laid = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return laid.copy_(changed)
