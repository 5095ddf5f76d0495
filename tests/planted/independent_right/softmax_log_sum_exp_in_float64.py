"""A right kernel; UNUSUAL says how it is unusual."""

import torch

OP = "softmax"
UNUSUAL = "Exp(v - logsumexp(v)) in float64; the gradient by a batched product."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(x, scale):
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    values = x.double()
    values = (values - values.amax(-1, keepdim=True)) * scale
    return (values - torch.logsumexp(values, -1, keepdim=True)).exp().to(x.dtype).contiguous()


def gradient(grad, y, scale):
    p, g = y.double(), grad.double()
    along = (g[..., None, :] @ p[..., :, None]).squeeze(-1)
    return (scale * (p * g - p * along)).to(y.dtype).contiguous()
