"""The meaning of linear_kl, in float64, and how large the parts of each result are."""

import math
from typing import Any

import torch
from torch import Tensor

# What a logit is off by, of its size.
_LOGIT = 4e-6
# What a gradient of a logit loses as a subnormal number of x's dtype: of float16 half the step that
# they lie apart by, of others all of it, over what a result may be off by relatively.
_LOST = {torch.float32: 2**-106, torch.float16: 2**-14, torch.bfloat16: 2**-106}
# The same of a kept gradient, before it is multiplied by what comes in.
_LOST_KEPT = {torch.float32: 2**-108, torch.float16: 2**-15, torch.bfloat16: 2**-119}
# Tokens in the shortest chunk of an implementation: the gradient of weight is rounded once a chunk.
_CHUNK = 256
# The same in up to so many tokens, of which a kernel with small tiles makes many chunks.
_SHORT_CHUNK, _SHORT = 4, 520
# The gradient of the logits is made of float32 parts and rounded to x's dtype: by how much the
# float32 tolerance of its parts is finer than the dtype's.
_FINER = {torch.float32: 1.0, torch.float16: 2**-7, torch.bfloat16: 2**-10, torch.float64: 1.0}


def reference(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    beta: float = 0.0,
    reduction: str = "mean",
    x_gradient: bool = True,
    weight_gradient: bool = True,
    accumulate_float32: bool = False,
    divide_late: bool = False,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss [], gradient of x [M, H] or empty, gradient of weight [V, H] or empty).

    The gradients are those of the loss; with divide_late, of the sum even for a mean.
    """
    del accumulate_float32, in_place
    kept = _kept(x, mask)
    log_q = _log_softmax(x, weight, temperature)
    # what is left out may be anything; a gradient of it would be 0 times that
    log_p = _log_softmax(teacher_x, teacher_weight, temperature)
    log_p = torch.where(kept[:, None], log_p, 0.0)
    losses = _divergence(log_q, log_p, beta).sum(-1) * temperature**2
    loss = torch.where(kept, losses, 0.0).sum() / (kept.sum() if reduction == "mean" else 1)
    with torch.no_grad():
        grad = _slope(log_q, log_p, beta)
        grad = grad - log_q.exp() * grad.sum(-1, keepdim=True)
        grad = torch.where(kept[:, None], grad, 0.0) * temperature
        grad = grad * _unit(kept, reduction, divide_late)
        none = log_q.new_empty(0)
        grad_x = grad @ weight.double() if x_gradient else none
        grad_weight = grad.T @ x.double() if weight_gradient else none
    return loss, grad_x, grad_weight


def gradient_magnitude(
    directions: list[Tensor | None], *, divide_late: bool = False, **arguments: Any
) -> dict[str, Tensor]:
    """The sizes that rounding errors of the gradients of x and weight are relative to.

    They are kept in x's dtype, in which a small one loses as a subnormal number does; what comes
    in multiplies that, too.
    """
    del divide_late
    _, x, weight = magnitude(**arguments)
    way, lost = directions[0], _LOST_KEPT[arguments["x"].dtype]
    assert way is not None
    size = way.double().abs()
    return {"x": (x + lost) * size, "weight": (weight + lost) * size}


def magnitude(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    beta: float = 0.0,
    reduction: str = "mean",
    x_gradient: bool = True,
    weight_gradient: bool = True,
    accumulate_float32: bool = False,
    divide_late: bool = False,
    in_place: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sizes that rounding errors are relative to.

    A logarithm of a probability is off by the sizes of the logits in it, and the probability by the
    exponential of that; each part of a divergence and of its gradient is a probability times such
    logarithms. The gradient of weight, a sum of n chunks in x's dtype, is rounded n times: where
    partial sums grow evenly, by half a step times sqrt(n) / 3 as a standard deviation, and the two
    half steps that a tolerance allows for one chunk are, times sqrt(n), six of these. Chunks of
    tokens that are all alike may all be rounded the same way: then errors of half a step of sums
    that grow to the result add up, a quarter of n times these two.
    """
    del in_place
    kept = _kept(x, mask)
    roundings = 1.0
    if not accumulate_float32 and x.dtype != torch.float32 and len(x):
        fewest = _SHORT_CHUNK if len(x) <= _SHORT else _CHUNK
        chunks = max(min(len(x), _SHORT_CHUNK), math.ceil(len(x) / fewest))
        alike = all(bool((each == each[:1]).all()) for each in (x, teacher_x))
        roundings = max(math.sqrt(chunks), chunks / 4 if alike else 0.0)
    log_q = _log_softmax(x, weight, temperature)
    log_p = _log_softmax(teacher_x, teacher_weight, temperature)
    log_p = torch.where(kept[:, None], log_p, 0.0)
    off = 1 + log_q.abs() + log_p.abs()
    off = off + _size(x, weight, temperature) + _size(teacher_x, teacher_weight, temperature)
    q = log_q.exp()
    parts = _off(log_p, off) + _off(log_q, off)
    spread = parts.sum(-1, keepdim=True)
    losses = torch.where(kept, spread[:, 0], 0.0).sum() * temperature**2
    slope = _slope(log_q, log_p, beta)
    grad = (slope - q * slope.sum(-1, keepdim=True)).abs()
    grad = grad + (parts + q * spread) * _FINER[x.dtype]
    grad = torch.where(kept[:, None], grad + _LOST[x.dtype], 0.0) * temperature
    grad = grad * _unit(kept, reduction, divide_late)
    none = log_q.new_empty(0)
    return (
        losses / (kept.sum() if reduction == "mean" else 1),
        grad @ weight.double().abs() if x_gradient else none,
        grad.T @ x.double().abs() * roundings if weight_gradient else none,
    )


def _off(logarithm: Tensor, off: Tensor) -> Tensor:
    """By how much a probability whose logarithm is off by so much may be: no more than up to 1."""
    p = logarithm.exp()
    return torch.maximum(p * off, ((logarithm + _LOGIT * off).clamp(max=0.0).exp() - p) / _LOGIT)


def _log_softmax(x: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return (x.double() @ weight.double().T / temperature).log_softmax(-1)


def _size(x: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Of a logit, and of the terms that it is the sum of, whose errors cancel in part."""
    x, weight = x.double(), weight.double()
    return ((x @ weight.T).abs() + x.abs() @ weight.abs().T / 16) / temperature


def _log_mixture(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))


def _divergence(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    """Summed over classes: the divergence; p is the teacher's."""
    p, q = log_p.exp(), log_q.exp()
    if beta == 0:
        return p * (log_p - log_q)
    if beta == 1:
        return q * (log_q - log_p)
    log_m = _log_mixture(log_q, log_p, beta)
    return beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m)


def _slope(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    """The derivative with respect to log q, but for multiples of q, which the softmax removes."""
    if beta == 0:
        return -log_p.exp()
    if beta == 1:
        return log_q.exp() * (log_q - log_p)
    return (1 - beta) * log_q.exp() * (log_q - _log_mixture(log_q, log_p, beta))


def _kept(x: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if mask is None else mask


def _unit(kept: Tensor, reduction: str, divide_late: bool) -> Tensor:
    """What the gradients of the sum are multiplied by."""
    count = kept.sum().clamp(min=1).double()
    return count.reciprocal() if reduction == "mean" and not divide_late else count.fill_(1.0)
