"""Which of an op's cases an implementation takes, and which run in other layouts, too."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tercet.kernel.contract import Case, Implementation, Op

# of which one at least is rounded otherwise by who rounds once more
_SOME = 32


def select_fitting(
    op: Op, implementation: Implementation, cases: Iterable[Case], seed: int = 0
) -> tuple[Case, ...]:
    """The cases whose sizes and options the implementation takes."""
    if op.describe is None:
        return tuple(cases)
    return tuple(
        case for case in cases if op.unfit(implementation, op.prepare(case.make(seed))) is None
    )


def spread_plain(cases: tuple[Case, ...], count: int, *, short: bool) -> list[Case]:
    """Some cases with plain values, elements and a gradient, from the whole range.

    Where `short`, without the quarter that has the longest axes: it takes most of the time where
    operations are interpreted, and drawn cases lie in other layouts, too.
    """
    longest = {case: _longest_axis(case) for case in cases if case.gradient}
    plain = {case: axis for case, axis in longest.items() if axis is not None}
    if short and plain:
        most = sorted(plain.values())[3 * len(plain) // 4]
        plain = {case: axis for case, axis in plain.items() if axis <= most}
    return list(plain)[:: max(1, len(plain) // count)][:count]


def smallest_of_each_dtype(cases: Iterable[Case]) -> list[Case]:
    """The case with the fewest elements, but some, of each dtype that a first tensor has."""
    found = dict[torch.dtype, tuple[int, Case]]()
    for case in cases:
        tensors = [each for each in case.make(0).values() if isinstance(each, Tensor)]
        if _longest_axis(case) is None or tensors[0].numel() < _SOME:
            continue
        size = sum(each.numel() for each in tensors)
        known = found.get(tensors[0].dtype)
        if case.gradient and (known is None or size < known[0]):
            found[tensors[0].dtype] = size, case
    return [case for _, case in found.values()]


def _longest_axis(case: Case) -> int | None:
    """Of its tensors; None where torch's own checks do not take it.

    They compare NaN with NaN, which an empty mean gives, and call it different; on a CPU they have
    no arithmetic for 8-bit floats.
    """
    tensors = [value for value in case.make(0).values() if isinstance(value, Tensor)]
    for value in tensors:
        if not value.numel() or (value.is_floating_point() and value.element_size() == 1):
            return None
    return max((size for tensor in tensors for size in tensor.shape), default=0)
