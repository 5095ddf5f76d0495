"""linear_kl in Triton around cuBLAS: four products in all, no logits whole.

Chunks of CHUNK tokens: both heads' logits [CHUNK, V] in float32, then the gradient of the student's
in x's dtype, then its two products. The loss is a scalar, so the gradients are computed with it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.device.add_product import add_product
from tercet.kernel.device.scaled import scaled
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.tuned import configuration

_DEFAULT = {"CHUNK": 512, "BLOCK": 4096, "num_warps": 16}
_LOWEST = tl.constexpr(-3.0e38)  # not -inf, so that inf - inf does not arise without an infinity
_FORWARD, _REVERSE, _MIXTURE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _over_mixture(log_q, log_p, beta):
    """log q and log p minus the logarithm of their mixture; relative to the larger of the two."""
    top = tl.maximum(log_q, log_p)
    a, b = log_q - top, log_p - top
    log_m = tl.log(beta * tl.exp(b) + (1.0 - beta) * tl.exp(a))
    return a - log_m, b - log_m


@triton.jit
def _divergence_rows(
    student_ptr, teacher_ptr, grad_ptr, mask_ptr, unit_ptr, loss_ptr,
    rows, V, inverse, squared, beta,
    MODE: tl.constexpr, HAS_MASK: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Losses of whole rows of both logits, and the gradient of the student's.

    `inverse` is 1 / temperature, `squared` is temperature^2.
    """
    # eight neighbours to a thread: their maximum costs no exchange between threads
    lanes = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    # d loss / d logit is temperature^2 / temperature times that of the scaled logit
    unit = tl.load(unit_ptr) * squared * inverse
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        start = (tl.full((), 0, tl.int64) + row) * V
        kept = True
        if HAS_MASK:
            kept = tl.load(mask_ptr + row) != 0
        top_q = tl.full((BLOCK // 8,), _LOWEST, tl.float32)
        top_p = tl.full((BLOCK // 8,), _LOWEST, tl.float32)
        sum_q = tl.zeros((BLOCK // 8,), tl.float32)
        sum_p = tl.zeros((BLOCK // 8,), tl.float32)
        cross = tl.zeros((BLOCK // 8,), tl.float32)
        for first in range(0, V, BLOCK):
            at = first + lanes
            inside = at < V
            u = tl.load(student_ptr + start + at, inside, 0.0) * inverse
            t = tl.load(teacher_ptr + start + at, inside, 0.0) * inverse
            apart = t - u
            u, t = tl.where(inside, u, float("-inf")), tl.where(inside, t, float("-inf"))
            now_q, now_p = tl.maximum(top_q, tl.max(u, 1)), tl.maximum(top_p, tl.max(t, 1))
            q, p = tl.exp(u - now_q[:, None]), tl.exp(t - now_p[:, None])
            scale_q, scale_p = tl.exp(top_q - now_q), tl.exp(top_p - now_p)
            sum_q = sum_q * scale_q + tl.sum(q, 1)
            sum_p = sum_p * scale_p + tl.sum(p, 1)
            if MODE == _FORWARD:
                cross = cross * scale_p + tl.sum(p * apart, 1)
            elif MODE == _REVERSE:
                cross = cross * scale_q - tl.sum(q * apart, 1)
            top_q, top_p = now_q, now_p
        q_top, p_top = tl.max(top_q, 0), tl.max(top_p, 0)
        scale_q, scale_p = tl.exp(top_q - q_top), tl.exp(top_p - p_top)
        q_sum, p_sum = tl.sum(sum_q * scale_q, 0), tl.sum(sum_p * scale_p, 0)
        # the maxima apart: an lse of 10,000 is off by 5e-4 in float32
        q_log, p_log = tl.log(q_sum), tl.log(p_sum)
        between = (q_top - p_top) + (q_log - p_log)
        slope = 0.0
        if MODE == _FORWARD:
            loss = tl.sum(cross * scale_p, 0) / p_sum + between
        elif MODE == _REVERSE:
            loss = tl.sum(cross * scale_q, 0) / q_sum - between
            slope = loss
        else:
            of_q = tl.zeros((BLOCK // 8,), tl.float32)
            of_p = tl.zeros((BLOCK // 8,), tl.float32)
            for first in range(0, V, BLOCK):
                at = first + lanes
                inside = at < V
                u = tl.load(student_ptr + start + at, inside, 0.0) * inverse
                t = tl.load(teacher_ptr + start + at, inside, 0.0) * inverse
                u, t = tl.where(inside, u, q_top), tl.where(inside, t, p_top)
                log_q, log_p = (u - q_top) - q_log, (t - p_top) - p_log
                over_q, over_p = _over_mixture(log_q, log_p, beta)
                of_q += tl.sum(tl.where(inside, tl.exp(log_q) * over_q, 0.0), 1)
                of_p += tl.sum(tl.where(inside, tl.exp(log_p) * over_p, 0.0), 1)
            slope = (1.0 - beta) * tl.sum(of_q, 0)
            loss = slope + beta * tl.sum(of_p, 0)
        tl.store(loss_ptr + row, tl.where(kept, loss * squared, 0.0))
        if GRADIENT:
            for first in range(0, V, BLOCK):
                at = first + lanes
                inside = at < V
                u = tl.load(student_ptr + start + at, inside, 0.0) * inverse
                t = tl.load(teacher_ptr + start + at, inside, 0.0) * inverse
                u, t = tl.where(inside, u, q_top), tl.where(inside, t, p_top)
                log_q, log_p = (u - q_top) - q_log, (t - p_top) - p_log
                if MODE == _FORWARD:
                    grad = tl.exp(log_q) - tl.exp(log_p)
                elif MODE == _REVERSE:
                    grad = tl.exp(log_q) * ((log_q - log_p) - slope)
                else:
                    over_q, _ = _over_mixture(log_q, log_p, beta)
                    grad = tl.exp(log_q) * ((1.0 - beta) * over_q - slope)
                tl.store(grad_ptr + start + at, tl.where(kept, grad * unit, 0.0), inside)


def forward(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None,
    temperature: float, beta: float, reduction: str,
    x_gradient: bool, weight_gradient: bool,
    accumulate_float32: bool, divide_late: bool, in_place: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As op.linear_kl."""
    del in_place
    (m, h), v = x.shape, weight.shape[0]
    x, weight, teacher_x, teacher_weight = map(as_rows, (x, weight, teacher_x, teacher_weight))
    sizes = {"M": m, "H": h, "G": teacher_x.shape[1], "V": v}
    options = configuration("linear_kl", "triton", sizes, _DEFAULT)
    one = torch.ones((), dtype=torch.float32, device=x.device)
    count = one * m if mask is None else mask.sum().float()
    divide = reduction == "mean" and not divide_late
    unit = count.clamp(min=1).reciprocal() if divide else one
    losses = torch.empty(m, dtype=torch.float32, device=x.device)
    grad_x = torch.empty((m, h) if x_gradient else (0,), dtype=x.dtype, device=x.device)
    total = torch.empty(
        (v, h) if weight_gradient else (0,),
        dtype=torch.float32 if accumulate_float32 else x.dtype, device=x.device,
    )  # fmt: skip
    if not m:
        total.zero_()
    gradient = x_gradient or weight_gradient
    rows = min(options["CHUNK"], m)
    logits = torch.empty((2, rows, v), dtype=torch.float32, device=x.device)
    grads = torch.empty((rows if gradient else 0, v), dtype=x.dtype, device=x.device)
    flags = losses if mask is None else mask.contiguous().view(torch.uint8)
    mode = _FORWARD if beta == 0 else _REVERSE if beta == 1 else _MIXTURE
    for first in range(0, m, max(1, rows)):
        part = slice(first, min(first + rows, m))
        size = part.stop - first
        student, teacher = logits[0, :size], logits[1, :size]
        _logits(x[part], weight, student)
        _logits(teacher_x[part], teacher_weight, teacher)
        _divergence_rows[(min(size, multiprocessors(x.device)),)](
            student, teacher, grads, flags[first:], unit, losses[first:],
            size, v, 1 / temperature, temperature**2, beta,
            MODE=mode.value, HAS_MASK=mask is not None, GRADIENT=gradient,
            BLOCK=max(8, min(options["BLOCK"], triton.next_power_of_2(v))),
            num_warps=options["num_warps"],
        )  # fmt: skip
        if x_gradient:
            add_product(grad_x[part], grads[:size], weight, fresh=True)
        if weight_gradient:
            add_product(total, grads[:size].t(), x[part], fresh=first == 0)
    loss = losses.sum()
    return loss / count if reduction == "mean" else loss, grad_x, total.to(x.dtype)


def _logits(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """out = x @ weight^T in float32, on the tensor cores of x's dtype."""
    if x.dtype == out.dtype:
        torch.mm(x, weight.t(), out=out)
    elif x.is_cuda:
        torch.mm(x, weight.t(), out_dtype=out.dtype, out=out)
    else:  # out_dtype is for GPUs; here kernels are interpreted
        torch.mm(x.to(out.dtype), weight.t().to(out.dtype), out=out)


def gradient(
    grad: Tensor, grad_x: Tensor, grad_weight: Tensor, in_place: bool
) -> tuple[Tensor, Tensor]:
    """As op's linear_kl_gradient: both times the scalar grad."""
    first, second = (scaled("linear_kl", grad, kept, in_place) for kept in (grad_x, grad_weight))
    return first, second
