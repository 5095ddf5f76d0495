"""linear_kl in plain torch, right, in another way; written blind."""

import math

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_kl"
UNUSUAL = (
    "64 tokens at a time in float64: logits from tiles of 100 classes, the last first, normalized "
    "by logsumexp; the mixture by logaddexp; both gradients kept in float64 to the end."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_TOKENS, _CLASSES = 64, 100


def forward(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    reduction: str,
    x_gradient: bool,
    weight_gradient: bool,
    accumulate_float32: bool,
    divide_late: bool,
    in_place: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_kl."""
    del accumulate_float32, in_place
    m = len(x)
    kept = torch.ones(m, dtype=torch.bool, device=x.device) if mask is None else mask
    count = int(kept.sum())
    unit = 1 / max(count, 1) if reduction == "mean" and not divide_late else 1.0
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype, device=x.device)
    shape = weight.shape if weight_gradient else (0,)
    total = torch.zeros(shape, dtype=torch.float64, device=x.device)
    for first in range(0, m, _TOKENS):
        some = slice(first, first + _TOKENS)
        log_q = _logarithms(x[some], weight, temperature)
        log_p = _logarithms(teacher_x[some], teacher_weight, temperature)
        divergence, slope = _divergence(log_q, log_p, beta)
        loss = loss + torch.where(kept[some], divergence, 0.0).sum()
        slope = slope - log_q.exp() * slope.sum(-1, keepdim=True)
        grad = torch.where(kept[some, None], slope * (unit * temperature), 0.0).to(x.dtype).double()
        if x_gradient:
            grad_x[some] = (grad @ weight.double()).float().to(x.dtype)
        if weight_gradient:
            total = total + grad.T @ x[some].double()
    loss = loss * temperature**2
    if reduction == "mean":
        loss = loss / count if count else torch.full_like(loss, math.nan)
    return loss.float(), grad_x, total.float().to(weight.dtype)


def _logarithms(x: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """log softmax [C, V] of the logits over the temperature."""
    wide = x.double()
    tiles = [
        wide @ weight[first : first + _CLASSES].double().T
        for first in reversed(range(0, len(weight), _CLASSES))
    ]
    logits = torch.cat(tiles[::-1], -1) / temperature
    return logits - logits.logsumexp(-1, keepdim=True)


def _divergence(log_q: Tensor, log_p: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    p, q = log_p.exp(), log_q.exp()
    if beta == 0:
        return (p * (log_p - log_q)).sum(-1), -p
    if beta == 1:
        slope = q * (log_q - log_p)
        return slope.sum(-1), slope
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    slope = (1 - beta) * q * (log_q - log_m)
    return (beta * p * (log_p - log_m) + slope).sum(-1), slope
