"""Forms: contents that a kernel may take for nothing, or that make something of nothing.

Numbers whose sum is 0 without their being 0, the identity's ones, what looks like the same for
all, and special values that meet.
"""

import random
from collections.abc import Callable, Mapping
from itertools import product
from math import inf, isfinite, nan

import torch
from torch import Tensor

_MOST = 3
_SPECIAL = (0.0, -0.0, 1.0, inf, -inf, nan)
MEETING = tuple(pair for pair in product(_SPECIAL, repeat=2) if not all(map(isfinite, pair)))
"""Two numbers of which one at least is no finite one."""


def _ones(value: Tensor, seed: int) -> Tensor:
    del seed
    return torch.ones_like(value)


def _balanced(value: Tensor, seed: int) -> Tensor:
    """Small whole numbers along the last axis: their sum is 0 in any order and any dtype."""
    generator = torch.Generator().manual_seed(seed)
    count = value.shape[-1] if value.dim() else 1
    half = torch.randint(1, _MOST + 1, (*value.shape[:-1], count // 2), generator=generator)
    made = torch.cat((half, -half, half.new_zeros(*value.shape[:-1], count % 2)), -1)
    made = made[..., torch.randperm(count, generator=generator)]
    return made.to(value.dtype).reshape(value.shape)


def _alike_ends(value: Tensor, seed: int) -> Tensor:
    """The last one along the leading axis as the first one, others as they were."""
    del seed
    made = value.clone(memory_format=torch.contiguous_format)
    made[-1] = made[0]
    return made


FORMS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "ones": _ones,
    "balanced": _balanced,
    "with alike ends": _alike_ends,
}
"""What an input holds in place of what was drawn."""


def meet(one: Tensor, other: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """Both with one pair of special values in each row, at the same place of it.

    Where there is no other, at two places of the one: side by side, or half a row apart. Where the
    other is one row for all, it has zeros there: any other value would be in every row's result.

    Args:
        one, other: with equally many elements in a row; two at least where there is no other.
        seed: of the order of the pairs, and of the places.
    """
    generator = random.Random(seed)
    first = one.clone(memory_format=torch.contiguous_format)
    second = first if other is None else other.clone(memory_format=torch.contiguous_format)
    shared = second.dim() < first.dim()
    pairs = [pair for pair in MEETING if not shared or pair[1] == 0]
    generator.shuffle(pairs)
    columns = one.shape[-1]
    apart = 0 if other is not None else generator.choice((1, columns // 2))
    for row in range(one.numel() // max(columns, 1)):
        at = generator.randrange(columns)
        a, b = pairs[row % len(pairs)]
        first.view(-1, columns)[row, at] = a
        second.view(-1, columns)[0 if shared else row, (at + apart) % columns] = b
    return first, second
