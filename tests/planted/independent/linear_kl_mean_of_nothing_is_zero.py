"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.kept_gradient import gradient

OP = "linear_kl"
FAULT = (
    "A mean over no tokens (all of them masked) is 0 rather than NaN: the count is held at 1 for "
    "the loss, too, and not for the gradients alone."
)
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]

_CHUNK = 256


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
    del in_place
    m = x.shape[0]
    kept = torch.ones(m, dtype=torch.bool, device=x.device) if mask is None else mask
    count = kept.sum().clamp(min=1)
    divide = reduction == "mean" and not divide_late
    unit = 1 / count.float() if divide else torch.ones((), device=x.device)
    losses = torch.empty(m, dtype=torch.float32, device=x.device)
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype, device=x.device)
    total = torch.zeros(
        weight.shape if weight_gradient else (0,),
        dtype=torch.float32 if accumulate_float32 else x.dtype,
        device=x.device,
    )
    exact, teacher_exact = weight.float(), teacher_weight.float()
    for first in range(0, m, _CHUNK):
        part = slice(first, first + _CHUNK)
        log_q = ((x[part].float() @ exact.T) / temperature).log_softmax(-1)
        log_p = ((teacher_x[part].float() @ teacher_exact.T) / temperature).log_softmax(-1)
        divergence, slope = _divergence(log_q, log_p, beta)
        losses[part] = torch.where(kept[part], divergence * temperature**2, 0.0)
        if not (x_gradient or weight_gradient):
            continue
        grad = slope.sub_(log_q.exp() * slope.sum(-1, keepdim=True))
        grad = torch.where(kept[part, None], grad * (unit * temperature), 0.0).to(x.dtype)
        if x_gradient:
            add_product(grad_x[part], grad, weight, fresh=True)
        if weight_gradient:
            add_product(total, grad.T, x[part], fresh=False)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    return loss, grad_x, total.to(weight.dtype)


def _divergence(log_q: Tensor, log_p: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    if beta == 0:
        p = log_p.exp()
        return (p * (log_p - log_q)).sum(-1), p.neg_()
    q = log_q.exp()
    if beta == 1:
        slope = q * (log_q - log_p)
        return slope.sum(-1), slope
    top = torch.maximum(log_p, log_q)
    log_m = (beta * (log_p - top).exp() + (1 - beta) * (log_q - top).exp()).log()
    slope = (1 - beta) * q * ((log_q - top) - log_m)
    teacher = beta * log_p.exp() * ((log_p - top) - log_m)
    return (teacher + slope).sum(-1), slope
