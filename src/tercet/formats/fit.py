"""Fit: scales and zero points from the weights alone.

All functions take W [N, K] and return scale [ceil(N/br), ceil(K/bk)] (and zero, where asked), in
float32, before rounding to the scheme's dtype.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.errors import FormatError, unknown_name
from tercet.formats.encode import (
    divisor_of,
    effective_scale,
    second_level,
    store_scale,
    store_zero,
)
from tercet.formats.scheme import Scheme

_SEARCH_STEPS = 80
_SEARCH_LOWEST = 0.2

Fitted = tuple[Tensor, Tensor | None]


def blocks_of(weight: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """W [N, K] cut into blocks [R, C, br * bk] padded with zeros, and a mask of real weights."""
    rows, columns = weight.shape
    br, bk = scheme.scaling.block((rows, columns))
    padding = (0, -columns % bk, 0, -rows % br)

    def cut(tensor: Tensor) -> Tensor:
        padded = pad(tensor, padding)
        split = padded.reshape(padded.shape[0] // br, br, padded.shape[1] // bk, bk)
        return split.transpose(1, 2).reshape(split.shape[0], split.shape[2], br * bk)

    return cut(weight.float()), cut(torch.ones_like(weight, dtype=torch.float32))


def join_blocks(blocks: Tensor, scheme: Scheme, shape: tuple[int, int]) -> Tensor:
    """Blocks [R, C, br * bk] back to the matrix W [N, K] that `blocks_of` cut."""
    br, bk = scheme.scaling.block(shape)
    rows, columns = blocks.shape[:2]
    split = blocks.reshape(rows, columns, br, bk).transpose(1, 2)
    return split.reshape(rows * br, columns * bk)[: shape[0], : shape[1]]


def absmax(weight: Tensor, scheme: Scheme) -> Fitted:
    """Symmetric: scale = max |w| / highest level. With zero points: (max - min) / level span."""
    blocks, _ = blocks_of(weight, scheme)
    element = scheme.element
    if scheme.scaling.zero is None:
        return _amax(blocks.abs()) / element.highest, None
    # zero is always inside the range, so that padding and pruned weights stay exact
    low, high = _amin(blocks).clamp(max=0), _amax(blocks).clamp(min=0)
    scale = (high - low) / (element.highest - element.lowest)
    zero = torch.where(scale > 0, element.lowest - low / scale, 0.0)
    return scale, zero.round() if scheme.scaling.zero == "int8" else zero


def absmean(weight: Tensor, scheme: Scheme) -> Fitted:
    """scale = mean |w| over the block (BitNet b1.58, arXiv:2402.17764), for symmetric schemes.

    With more levels than three, the mean is placed at half of the highest level.
    """
    if scheme.scaling.zero is not None:
        raise FormatError(f"absmean is symmetric; scheme {scheme.name!r} has zero points: use mse")
    blocks, mask = blocks_of(weight, scheme)
    mean = blocks.abs().sum(-1) / mask.sum(-1).clamp_min(1)
    return mean * 2 / max(scheme.element.highest, 2.0), None


def mse(weight: Tensor, scheme: Scheme, importance: Tensor | None = None) -> Fitted:
    """The shrunken absmax scale of least squared error, over a grid of 80 factors from 1 to 0.2.

    Args:
        weight: W [N, K].
        scheme: the number format.
        importance: [K] weights of the squared error per column (say, the diagonal of the Hessian);
            None counts all columns alike.
    """
    scale, zero = absmax(weight, scheme)
    blocks, weights = blocks_of(weight, scheme)
    if importance is not None:
        weights = blocks_of(importance.float().expand_as(weight), scheme)[0]
    elif blocks.numel() == weight.numel():
        weights = None
    return search(blocks, scheme, scale, zero, search_factors(), weights)


def search_factors() -> Tensor:
    """The factors [80] on the absmax scale that `mse` tries, falling."""
    return torch.linspace(1.0, _SEARCH_LOWEST, _SEARCH_STEPS, dtype=torch.float32)


def search(
    blocks: Tensor,
    scheme: Scheme,
    scale: Tensor,
    zero: Tensor | None,
    factors: Tensor,
    importance: Tensor | None = None,
    cost: Callable[[Tensor], Tensor] | None = None,
) -> Fitted:
    """For each block, the factor on its scale of least cost, as scales and zeros will be stored.

    Args:
        blocks: weights [R, C, B] from `blocks_of`.
        scheme: the number format.
        scale, zero: where to start, [R, C].
        factors: what to try, [F].
        importance: weights of the squared errors [R, C, B].
        cost: errors [R, C, B] to the cost of each block [R, C], in place of the squared error.
    """
    best_scale, best_zero = scale.clone(), zero.clone() if zero is not None else None
    best_error = torch.full_like(scale, torch.inf)
    second = second_level(scale, scheme)
    # the second level follows the largest scale: keep it, or every stored scale moves under it
    kept = torch.zeros_like(scale, dtype=torch.bool)
    if second is not None and scale.numel():
        kept = scale == scale.max()
    for factor in (float(step) for step in factors):
        wanted = torch.where(kept, scale, scale * factor)
        trial = effective_scale(store_scale(wanted, scheme, second), second)
        trial_zero = shrink_zero(zero, factor, scheme)
        difference = nearest(blocks, scheme, trial, trial_zero).sub_(blocks)
        if cost is not None:
            error = cost(difference)
        else:
            squared = difference.square_()
            error = (squared if importance is None else squared.mul_(importance)).sum(-1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, trial, best_scale)
        if best_zero is not None and trial_zero is not None:
            best_zero = torch.where(better, trial_zero, best_zero)
    return best_scale, best_zero


def shrink_zero(zero: Tensor | None, factor: float | Tensor, scheme: Scheme) -> Tensor | None:
    """Zero points, as stored, that keep the middle of a range shrunken by the factor.

    A tensor of factors broadcasts against the zero points.
    """
    if zero is None:
        return None
    middle = (scheme.element.lowest + scheme.element.highest) / 2
    stored = store_zero(middle + (zero - middle) / factor, scheme)
    return stored.float() if stored is not None else None


def nearest(blocks: Tensor, scheme: Scheme, scale: Tensor, zero: Tensor | None) -> Tensor:
    """blocks [R, C, B] encoded and decoded under the stored scale and zero [R, C]."""
    element = scheme.element
    values = blocks / divisor_of(scale)[..., None]
    if zero is not None:
        values = values.add_(zero[..., None])
    if element.integer:
        levels = values.round_().clamp_(element.lowest, element.highest)
    else:
        levels = element.decode(element.encode(values))
    if zero is not None:
        levels = levels.sub_(zero[..., None])
    return levels.mul_(scale[..., None])


def _amax(blocks: Tensor) -> Tensor:
    return blocks.amax(-1) if blocks.shape[-1] else blocks.new_zeros(blocks.shape[:-1])


def _amin(blocks: Tensor) -> Tensor:
    return blocks.amin(-1) if blocks.shape[-1] else blocks.new_zeros(blocks.shape[:-1])


FITS: dict[str, Callable[[Tensor, Scheme], Fitted]] = {
    "absmax": absmax,
    "absmean": absmean,
    "mse": mse,
}


def fit(weight: Tensor, scheme: Scheme, method: str = "mse") -> Fitted:
    """(scale, zero) by the method of that name; an unknown name raises FormatError."""
    if method not in FITS:
        raise FormatError(unknown_name("scale fit", method, FITS))
    return FITS[method](weight, scheme)
