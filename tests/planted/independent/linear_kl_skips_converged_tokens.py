"""linear_kl in plain torch, with a fault; written blind.

Tokens whose divergence is below 1e-6 get no gradient, for "there is nothing to learn". But a
divergence is the square of a difference: at 1e-6 probabilities are still off by 1e-3, and so is the
gradient. A user hits it near the end of a distillation, or of quantization-aware training that
begins at its teacher: it stops long before it is done.
"""

import torch
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.kept_gradient import gradient
from tercet.ops.linear_kl.torch_path import _divergence

OP = "linear_kl"
FAULT = (
    "Tokens with a divergence below 1e-6 have no gradient, though that is a difference of "
    "probabilities of up to 1e-3."
)
CAUGHT_BY = "backward"
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
    count = kept.sum()
    divide = reduction == "mean" and not divide_late
    unit = 1 / count.clamp(min=1).float() if divide else torch.ones_like(count, dtype=torch.float32)
    losses = torch.empty(m, dtype=torch.float32, device=x.device)
    grad_x = torch.empty(x.shape if x_gradient else (0,), dtype=x.dtype, device=x.device)
    total_dtype = torch.float32 if accumulate_float32 else x.dtype
    total = torch.zeros(
        weight.shape if weight_gradient else (0,), dtype=total_dtype, device=x.device
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
        counts = kept[part] & ~(divergence < 1e-6)
        grad = slope.sub_(log_q.exp() * slope.sum(-1, keepdim=True))
        grad = torch.where(counts[:, None], grad * (unit * temperature), 0.0).to(x.dtype)
        if x_gradient:
            add_product(grad_x[part], grad, weight, fresh=True)
        if weight_gradient:
            add_product(total, grad.T, x[part], fresh=False)
    loss = losses.sum() / (count if reduction == "mean" else 1)
    return loss, grad_x, total.to(weight.dtype)
