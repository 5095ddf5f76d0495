"""Compare: a result with its float64 reference, element by element."""

import numpy as np
import torch
from torch import Tensor

from tercet.harness.finding import NOT_FINITE, ErrorSummary

_QUANTILE_LIMIT = 1 << 20


def compare(
    tensor: str,
    found: Tensor,
    expected: Tensor,
    magnitude: Tensor,
    relative: float,
    native: Tensor | None = None,
    inner: float | None = None,
    *,
    any_infinity: bool = False,
) -> ErrorSummary:
    """How far found is from expected; wrong where |found - expected| > relative * magnitude.

    With `inner` the limit is relative * |expected| + inner * magnitude.

    NaN must be where the reference has it, and may be where that is infinite and the magnitude is
    NaN. An infinity is right where a number within the limit, rounded to found's dtype, is one. One
    smallest normal number is always allowed, but of 8-bit floats: subnormals may be flushed. These
    are codes, of which each bit counts: a zero has the reference's sign.

    Args:
        tensor: what to call it.
        found: any dtype.
        expected, magnitude: float64 of the same shape.
        relative: of the magnitude.
        native: the same result by plain torch in found's dtype, to compare the error with.
        inner: as Tolerance.inner.
        any_infinity: whether NaN and both infinities are one: where only a gradient reads it, which
            is undefined there.
    """
    expected, magnitude = expected.to(found.device), magnitude.to(found.device)
    if inner is not None and relative:
        magnitude = expected.abs() + inner / relative * magnitude
    ratio, limit = _ratio(found, expected, magnitude, relative)
    if any_infinity:
        ratio[(~expected.isfinite() & ~_double(found).isfinite()).flatten()] = 0.0
    if not ratio.numel():
        return _nothing(tensor)
    worst = int(ratio.argmax())
    error = (_double(found) - expected).abs().nan_to_num(nan=0.0, posinf=0.0).flatten()
    some = error if error.numel() <= _QUANTILE_LIMIT else error[:: error.numel() // _QUANTILE_LIMIT]
    middle, most = len(some) // 2, min(len(some) * 99 // 100, len(some) - 1)
    ranked = np.partition(some.cpu().numpy(), (middle, most))
    native_worst = None
    if native is not None and native.shape == found.shape:
        native_worst = _finite(_ratio(native.to(found.device), expected, magnitude, relative)[0])
    return ErrorSummary(
        tensor=tensor,
        worst=_finite(ratio),
        index=tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), found.shape)),
        found=float(_double(found).flatten()[worst]),
        expected=float(expected.flatten()[worst]),
        limit=float(limit.flatten()[worst]),
        median=float(ranked[middle]),
        p99=float(ranked[most]),
        largest=float(error.max()),
        wrong=int((ratio > 1).sum()),
        elements=found.numel(),
        native_worst=native_worst,
    )


def row_magnitude(expected: Tensor) -> Tensor:
    """The largest size in each row: what a gradient's rounding error is relative to."""
    finite = expected.abs().nan_to_num(posinf=0.0)
    if not finite.numel():
        return finite
    largest = finite.amax(-1, keepdim=True) if finite.dim() > 1 else finite.max()
    return largest.expand_as(finite)


def _ratio(
    found: Tensor, expected: Tensor, magnitude: Tensor, relative: float
) -> tuple[Tensor, Tensor]:
    value = _double(found)
    limit = relative * magnitude.nan_to_num(posinf=0.0)
    if found.dtype.is_floating_point and found.element_size() > 1:
        limit = limit + torch.finfo(found.dtype).smallest_normal
    error = (value - expected).abs()
    ratio = torch.where(limit > 0, error / limit, torch.where(error > 0, torch.inf, 0.0))
    same_nan = value.isnan() & (expected.isnan() | (expected.isinf() & magnitude.isnan()))
    # a number within the limit may round to infinity where the reference just does not
    furthest = torch.copysign(expected.abs() + limit, expected)
    rounded = _double(furthest.to(found.dtype)) if found.dtype.is_floating_point else expected
    same_infinity = value.isinf() & (value == rounded)
    ratio = torch.where(same_nan | same_infinity, 0.0, ratio)
    if found.element_size() == 1 and found.dtype.is_floating_point:
        zeros = (value == 0) & (expected == 0)
        ratio[zeros & (value.signbit() != expected.signbit())] = torch.inf
    ratio = ratio.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return ratio.flatten(), limit


def _double(x: Tensor) -> Tensor:
    return x.float().double() if x.element_size() == 1 and x.is_floating_point() else x.double()


def _finite(ratio: Tensor) -> float:
    return min(float(ratio.max()), NOT_FINITE) if ratio.numel() else 0.0


def _nothing(tensor: str) -> ErrorSummary:
    return ErrorSummary(
        tensor=tensor, worst=0.0, index=(), found=0.0, expected=0.0, limit=0.0, median=0.0,
        p99=0.0, largest=0.0, wrong=0, elements=0,
    )  # fmt: skip
