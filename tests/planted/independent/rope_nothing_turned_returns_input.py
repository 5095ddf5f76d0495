"""A planted fault; FAULT says which."""

import torch

OP = "rope"
FAULT = "Where R is 0 there is nothing to turn, and q and k themselves are returned, not copies."
DEVICE = "any"
CAUGHT_BY = "inputs"
__all__ = ["forward", "gradient"]


def forward(q, k, cos, sin, interleaved):
    if not cos.shape[-1]:
        return q.contiguous(), k.contiguous()
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(grad_q, grad_k, cos, sin, interleaved):
    return forward(grad_q, grad_k, cos, -sin, interleaved)


def _turn(x, cos, sin, interleaved):
    half = cos.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    one, two = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    first, second = x[..., one].float(), x[..., two].float()
    y[..., one] = first * cos - second * sin
    y[..., two] = second * cos + first * sin
    y[..., 2 * half :] = x[..., 2 * half :]
    return y
