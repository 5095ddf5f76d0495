"""What a user would call instead of linear_kl, and the floor: its products alone."""

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_Options = Any


def eager(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    reduction: str,
    **_: _Options,
) -> Tensor:
    """torch's own, with whole logits, in float32 from them on."""
    log_q = (functional.linear(x, weight).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        log_p = functional.linear(teacher_x, teacher_weight).float() / temperature
        log_p = log_p.log_softmax(-1)
    losses = _divergence(log_q, log_p, beta).sum(-1) * temperature**2
    if mask is not None:
        losses = losses[mask]
    return losses.mean() if reduction == "mean" else losses.sum()


def liger(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    mask: Tensor | None,
    temperature: float,
    beta: float,
    **_: _Options,
) -> Tensor:
    """Liger-Kernel's fused linear JSD: chunks of tokens; its mean is not times temperature^2."""
    module = import_module("liger_kernel.ops.fused_linear_jsd")
    run = module.LigerFusedLinearJSDFunction.apply
    labels = None if mask is None else torch.where(mask, 0, -100)
    loss = run(x, weight, teacher_x, teacher_weight, labels, beta, -100, temperature)
    return loss * temperature**2


class _Products(torch.autograd.Function):
    """Both logits forward; both gradients of the student's product backward; no softmax."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor
    ) -> Tensor:
        logits = x @ weight.T
        ctx.save_for_backward(x, weight, logits)
        teacher = teacher_x @ teacher_weight.T
        return (logits[:1, :1] + teacher[:1, :1]).float().sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        del grads
        x, weight, logits = ctx.saved_tensors
        return logits @ weight, logits.T @ x, None, None


def four_products(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, **_: _Options
) -> Tensor:
    """Not the loss: only the four matrix products that it cannot do without, each whole."""
    products: Any = _Products
    return products.apply(x, weight, teacher_x, teacher_weight)


def _divergence(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return functional.kl_div(log_q, log_p, reduction="none", log_target=True)
    if beta == 1:
        return functional.kl_div(log_p, log_q, reduction="none", log_target=True)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
    teacher = functional.kl_div(log_m, log_p, reduction="none", log_target=True)
    student = functional.kl_div(log_m, log_q, reduction="none", log_target=True)
    return beta * teacher + (1 - beta) * student
