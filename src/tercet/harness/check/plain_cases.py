"""Which of an op's cases also run in other layouts and contexts."""

from torch import Tensor

from tercet.kernel.contract import Case


def spread_plain(cases: tuple[Case, ...], count: int, *, short: bool) -> list[Case]:
    """Some cases with plain values, elements and a gradient, from the whole range.

    Where `short`, without the quarter that has the longest axes: it takes most of the time where
    operations are interpreted, and drawn cases lie in other layouts, too.
    """
    plain = [case for case in cases if case.gradient and _is_plain(case)]
    if short and plain:
        longest = {case.name: _longest_axis(case) for case in plain}
        most = sorted(longest.values())[3 * len(longest) // 4]
        plain = [case for case in plain if longest[case.name] <= most]
    return list(dict.fromkeys(plain[:: max(1, len(plain) // count)]))[:count]


def _longest_axis(case: Case) -> int:
    tensors = [value for value in case.make(0).values() if isinstance(value, Tensor)]
    return max((size for tensor in tensors for size in tensor.shape), default=0)


def _is_plain(case: Case) -> bool:
    """torch's own checks compare NaN with NaN, which an empty mean gives, and call it different; on
    a CPU they have no arithmetic for 8-bit floats."""
    tensors = [value for value in case.make(0).values() if isinstance(value, Tensor)]
    return all(
        value.numel() and not (value.is_floating_point() and value.element_size() == 1)
        for value in tensors
    )
