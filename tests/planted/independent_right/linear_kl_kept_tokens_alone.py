"""A right but unusual kernel; UNUSUAL says how."""

import math

import torch
from torch import Tensor

from tercet.kernel.device.kept_gradient import gradient

OP = "linear_kl"
UNUSUAL = (
    "Right, but unusual: the tokens that count are gathered first, and their divergence and "
    "slopes are those of one float64 product of all of them; the others get zeros."
)
DEVICE = "any"

__all__ = ["forward", "gradient"]


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
    del in_place, accumulate_float32
    at = torch.arange(len(x), device=x.device) if mask is None else mask.nonzero()[:, 0]
    student, exact = x[at].double(), weight.double()
    log_q = (student @ exact.T / temperature).log_softmax(-1)
    log_p = (teacher_x[at].double() @ teacher_weight.double().T / temperature).log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    if beta == 0:
        divergence, slope = (p * (log_p - log_q)).sum(-1), -p
    elif beta == 1:
        slope = q * (log_q - log_p)
        divergence = slope.sum(-1)
    else:
        log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
        slope = (1 - beta) * q * (log_q - log_m)
        divergence = (beta * p * (log_p - log_m) + slope).sum(-1)
    grad = (slope - q * slope.sum(-1, keepdim=True)) * temperature
    if reduction == "mean" and not divide_late:
        grad = grad / max(len(at), 1)
    loss = divergence.sum() * temperature**2 / (len(at) if reduction == "mean" else 1)
    grad_x, grad_weight = x.new_empty(0), weight.new_empty(0)
    if x_gradient:
        grad_x = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        grad_x[at] = (grad @ exact).to(x.dtype)
    if weight_gradient:
        grad_weight = (grad.T @ student).to(weight.dtype)
    return loss.float(), grad_x, grad_weight
