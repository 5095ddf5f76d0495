"""Peer error: how far a baseline's outputs are from the reference.

A peer may round where the op does not (8-bit activations, scales in 16 bits), so the op's own
tolerance does not fit it. But one that skips work, or runs with a broken configuration, must not
be shown as fast: its outputs are compared as a whole.
"""

from math import inf, isnan, sqrt
from typing import Any

from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.bench.variant import Results
from tercet.harness.check.at_scale import cut
from tercet.kernel.contract import Op, outputs_of

_ROWS = 64


def off_by(op: Op, arguments: dict[str, Any], results: Results) -> float:
    """Norm of the difference over the norm of the reference, the largest over the outputs.

    At most the first and the last 64 places of the op's independent axis are compared.

    Args:
        op: of which op.
        arguments: of the reference.
        results: the outputs, without the saved ones.
    """
    specs = {spec.name: spec for spec in op.of_role("input")}
    outputs = op.of_role("output")
    worst = 0.0
    for first, last in _ends(op, arguments):
        chunk = {
            name: cut(op, specs.get(name), value, first, last) for name, value in arguments.items()
        }
        right = outputs_of(op.reference(**chunk))
        for spec, expected, result in zip(outputs, right, results, strict=False):
            if result is not None:
                worst = max(worst, _apart(expected, cut(op, spec, result, first, last)))
    return worst


def too_far(error: float, tolerance: float) -> None:
    """UnsupportedError where the error is beyond the tolerance, or no number."""
    if not error <= tolerance:
        raise UnsupportedError(
            f"its outputs are {error:.3g} of their norm away from the reference, {tolerance:g} is "
            "allowed: it computes something else, and its time does not count"
        )


def _apart(expected: Tensor, found: Tensor) -> float:
    difference = float((found.double() - expected.double()).square().sum())
    size = float(expected.double().square().sum())
    # a NaN must not look right
    return inf if isnan(difference) else sqrt(difference / size if size else difference)


def _ends(op: Op, arguments: dict[str, Any]) -> list[tuple[int, int | None]]:
    """The first and the last places, or all of few."""
    for spec in op.of_role("input"):
        value = arguments.get(spec.name)
        if op.independent in spec.axes and isinstance(value, Tensor):
            if value.dim() != len(spec.axes):
                continue
            length = value.shape[spec.axes.index(op.independent)]
            if length > 2 * _ROWS:
                return [(0, _ROWS), (length - _ROWS, length)]
    return [(0, None)]
