"""The meaning of linear_cross_entropy, in float64, and how large the parts of each result are."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# A loss and an lse are float32, but made of logits that were rounded to x's dtype: by how much that
# rounding is coarser than the float32 tolerance.
_COARSER = {torch.float32: 1, torch.float16: 2**7, torch.bfloat16: 2**10}
# What a logit is off by, of its size: the rounding to x's dtype, and the product's.
_LOGIT = {torch.float32: 4e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
# What a logit or its gradient loses as a subnormal number of x's dtype: of float16 half the step
# that they lie apart by, of others all of it, over what a result may be off by relatively.
_LOST = {torch.float32: 2**-106, torch.float16: 2**-14, torch.bfloat16: 2**-106}
# The same of a kept gradient, before it is multiplied by what comes in.
_LOST_KEPT = {torch.float32: 2**-108, torch.float16: 2**-17, torch.bfloat16: 2**-121}
# Tokens in the shortest chunk of an implementation: the gradient of weight is rounded once a chunk.
_CHUNK = 256
# The same in up to so many tokens, of which a kernel with small tiles makes many chunks.
_SHORT_CHUNK, _FEW_TOKENS = 2, 520
# Of which the tolerance holds this many, independent or not.
_ROUNDINGS, _DEPENDENT_ROUNDINGS = 4, 8
_AT_ONCE = 1024
_SHORT = 1024  # terms of a float32 sum that the tolerance holds, their roundings being independent
_DEPENDENT = 64  # the same, where all go one way


def reference(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    x_gradient: bool = True,
    weight_gradient: bool = True,
    accumulate_float32: bool = False,
    divide_late: bool = False,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss [], lse [M], gradient of x [M, H] or empty, gradient of weight [V, H] or empty).

    The gradients are those of the loss; with divide_late, of the sum even for a mean.
    """
    del accumulate_float32, in_place
    kept = target != ignore_index
    classes, unit = torch.where(kept, target, 0), _unit(kept, reduction, divide_late)
    losses, lse, grad_x, grad_weight = _joined(
        (_of_rows(x[part], weight, classes[part], kept[part], unit) for part in _parts(x.shape[0])),
        x_gradient,
        weight_gradient,
    )
    return losses.sum() / (kept.sum() if reduction == "mean" else 1), lse, grad_x, grad_weight


def _of_rows(
    x: Tensor, weight: Tensor, classes: Tensor, kept: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses, lse and gradients of some tokens."""
    logits = x.double() @ weight.double().T
    lse = logits.logsumexp(-1)
    # NaN where a logit is infinite, as torch's cross_entropy has it
    picked = logits.log_softmax(-1).gather(1, classes[:, None])[:, 0]
    losses = torch.where(kept, -picked, 0.0)
    with torch.no_grad():
        grad = logits.softmax(-1)
        grad.scatter_add_(1, classes[:, None], grad.new_full((len(classes), 1), -1.0))
        grad = torch.where(kept[:, None], grad, 0.0) * unit
        return losses, lse, grad @ weight.double(), grad.T @ x.double()


def _parts(rows: int) -> list[slice]:
    """Of the tokens: logits of all at once in float64, several times over, would fill a GPU."""
    return [slice(first, first + _AT_ONCE) for first in range(0, rows, _AT_ONCE)] or [slice(0)]


def _joined(
    parts: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]], x_gradient: bool, weight_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All tokens' losses, lse and gradient of x, and the sum of their gradients of weight."""
    losses, lse, grad_x = list[Tensor](), list[Tensor](), list[Tensor]()
    total: Tensor | None = None
    for one_losses, one_lse, one_x, one_weight in parts:
        losses.append(one_losses)
        lse.append(one_lse)
        grad_x.append(one_x)
        total = one_weight if total is None else total.add_(one_weight)
    none = losses[0].new_empty(0)
    return (
        torch.cat(losses),
        torch.cat(lse),
        torch.cat(grad_x) if x_gradient else none,
        total if weight_gradient and total is not None else none,
    )


def gradient_magnitude(
    directions: list[Tensor | None], *, divide_late: bool = False, **arguments: Any
) -> dict[str, Tensor]:
    """The sizes that rounding errors of the gradients of x and weight are relative to.

    They are kept in x's dtype, in which a small one loses as a subnormal number does; what comes
    in multiplies that, too.
    """
    del divide_late
    *_, x, weight = magnitude(**arguments)
    way, lost = directions[0], _LOST_KEPT[arguments["x"].dtype]
    assert way is not None
    size = way.double().abs()
    return {"x": (x + lost) * size, "weight": (weight + lost) * size}


def magnitude(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    x_gradient: bool = True,
    weight_gradient: bool = True,
    accumulate_float32: bool = False,
    divide_late: bool = False,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sizes that rounding errors are relative to.

    A logit is off by its own size (and by a part of the sum of its terms' sizes). An lse is off by
    the mean size of the logits under the softmax, and a probability by both times itself, where
    these are small; where a logit of 10,000 is off by 20, both grow by the exponential of it.
    The gradient of weight, a sum of n chunks in x's dtype, is rounded n times: errors that are
    independent grow as sqrt(n), those of chunks that are all alike as n.
    """
    del in_place
    kept = target != ignore_index
    classes, unit = torch.where(kept, target, 0), _unit(kept, reduction, divide_late)
    parts = (
        _size_of_rows(x[part], weight, classes[part, None], kept[part], unit)
        for part in _parts(x.shape[0])
    )
    losses, lse, grad_x, grad_weight = _joined(parts, x_gradient, weight_gradient)
    loss = losses.sum() / (kept.sum() if reduction == "mean" else 1)
    return loss, lse, grad_x, grad_weight * (1.0 if accumulate_float32 else _roundings(x))


def _roundings(x: Tensor) -> float:
    """How much more than the tolerance holds a sum over chunks of tokens is off."""
    if x.dtype == torch.float32 or not len(x):
        return 1.0
    shortest = _SHORT_CHUNK if len(x) <= _FEW_TOKENS else _CHUNK
    chunks = math.ceil(len(x) / shortest)
    alike = bool((x == x[:1]).all())
    dependent = chunks / _DEPENDENT_ROUNDINGS if alike else 0.0
    return max(1.0, math.sqrt(chunks / _ROUNDINGS), dependent)


def _size_of_rows(
    x: Tensor, weight: Tensor, classes: Tensor, kept: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    left, right = x.double(), weight.double()
    logits = left @ right.T
    size = logits.abs() + left.abs() @ right.abs().T / 16 + _LOST[x.dtype]
    logarithm, off = logits.log_softmax(-1), _LOGIT[x.dtype]
    spread = (logarithm + off * size).logsumexp(-1) / off
    lse = spread * _COARSER[x.dtype] + logits.logsumexp(-1).abs()
    losses = torch.where(kept, lse + size.gather(1, classes)[:, 0] * _COARSER[x.dtype], 0.0)
    softmax, apart = logarithm.exp(), size + spread[:, None]
    # no probability is above 1, however far its logit is off
    most = (logarithm + off * apart).clamp(max=0.0).exp()
    grad = torch.maximum(softmax * apart, (most - softmax) / off) + softmax + _LOST[x.dtype]
    grad = grad.scatter_add(1, classes, torch.ones_like(classes, dtype=grad.dtype))
    grad = torch.where(kept[:, None], grad, 0.0) * unit
    by_x, by_weight = (_longer(each, x.dtype) for each in (right, left))
    return losses, lse, grad @ right.abs() * by_x, grad.T @ left.abs() * by_weight


def _longer(rows: Tensor, dtype: torch.dtype) -> float:
    """How much more than a short one a float32 sum over rows is off, of the terms' sizes.

    It grows as the square root of their count: N. Higham and T. Mary, "A New Approach to
    Probabilistic Rounding Error Analysis", 2019. Of equal terms all may be rounded the same way,
    and it grows as their count. Coarser dtypes' tolerances hold it all.
    """
    if dtype != torch.float32:
        return 1.0
    if len(rows) > 1 and bool((rows == rows[:1]).all()):
        return max(1.0, len(rows) / _DEPENDENT)
    return max(1.0, (len(rows) / _SHORT) ** 0.5)


def _unit(kept: Tensor, reduction: str, divide_late: bool) -> Tensor:
    """What the gradients of the sum are multiplied by."""
    count = kept.sum().clamp(min=1).double()
    return count.reciprocal() if reduction == "mean" and not divide_late else count.fill_(1.0)
