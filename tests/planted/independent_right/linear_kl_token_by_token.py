"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_kl"
UNUSUAL = "One token at a time in float64, gradients of the logits never rounded, kept tokens only."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None,
    temperature: float, beta: float, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_kl."""
    del accumulate_float32, in_place
    w, tw = weight.double(), teacher_weight.double()
    flags = [True] * len(x) if mask is None else mask.tolist()
    count = sum(flags)
    unit = 1 / max(count, 1) if reduction == "mean" and not divide_late else 1.0
    total = torch.zeros((), dtype=torch.float64)
    grad_x = torch.zeros(x.shape if x_gradient else (0,), dtype=x.dtype)
    sums = torch.zeros(w.shape if weight_gradient else (0,), dtype=torch.float64)
    for at, kept in enumerate(flags):
        hidden = x[at].double()
        grad = torch.zeros(len(w), dtype=torch.float64)
        if kept:
            log_q = torch.log_softmax(torch.mv(w, hidden) / temperature, 0)
            log_p = torch.log_softmax(torch.mv(tw, teacher_x[at].double()) / temperature, 0)
            loss, slope = _divergence(log_q, log_p, beta)
            total += loss * temperature**2
            grad = (slope - log_q.exp() * slope.sum()) * (temperature * unit)
        if x_gradient:
            grad_x[at] = torch.mv(w.T, grad).float().to(x.dtype)
        if weight_gradient:
            sums += torch.outer(grad, hidden)
    loss = total / count if reduction == "mean" and count else total
    if reduction == "mean" and not count:
        loss = torch.full_like(total, float("nan"))
    return loss.float(), grad_x, sums.float().to(weight.dtype)


def _divergence(log_q: Tensor, log_p: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    p, q = log_p.exp(), log_q.exp()
    if beta == 0:
        return (p * (log_p - log_q)).sum(), -p
    if beta == 1:
        slope = q * (log_q - log_p)
        return slope.sum(), slope
    first = log_p + torch.tensor(beta, dtype=torch.float64).log()
    log_m = torch.logaddexp(first, log_q + torch.tensor(1 - beta, dtype=torch.float64).log())
    slope = (1 - beta) * q * (log_q - log_m)
    return (beta * p * (log_p - log_m)).sum() + slope.sum(), slope
