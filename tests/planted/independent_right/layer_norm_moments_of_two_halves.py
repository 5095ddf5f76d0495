"""A right kernel; UNUSUAL says how it is unusual."""

import torch

OP = "layer_norm"
UNUSUAL = (
    "Each half of a row has a mean and a sum of squares of its own, merged as Chan et al. do; "
    "the gradient is summed from the last row to the first."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _moments(part):
    """(count, mean, sum of squares about it) of part [.., n]; zeros where n is 0."""
    count = part.shape[-1]
    if not count:
        zero = part.new_zeros((*part.shape[:-1], 1))
        return 0, zero, zero
    mean = part.sum(-1, keepdim=True) / count
    return count, mean, (part - mean).square().sum(-1, keepdim=True)


def forward(x, weight, bias, eps):
    wide = x.double()
    one, two = wide.tensor_split(2, -1)
    (a, mean_a, sum_a), (b, mean_b, sum_b) = _moments(one), _moments(two)
    if a + b:
        apart = mean_b - mean_a
        mean = (a * mean_a + b * mean_b) / (a + b)
        variance = (sum_a + sum_b + apart.square() * (a * b / (a + b))) / (a + b)
    else:
        mean, variance = mean_a * torch.nan, sum_a * torch.nan
    rstd = (variance + eps).rsqrt()
    y = (wide - mean) * rstd * weight.double()
    if bias is not None:
        y += bias.double()
    return y.to(x.dtype).contiguous(), mean.float().reshape(-1), rstd.float().reshape(-1)


def gradient(grad, x, weight, mean, rstd, has_bias):
    m, n = mean.numel(), weight.numel()
    g, wide = grad.double().reshape(m, n), x.double().reshape(m, n)
    r = rstd.double()[:, None]
    normal = (wide - mean.double()[:, None]) * r
    weighted = g * weight.double()
    level = weighted.sum(-1, keepdim=True) / max(n, 1)
    along = (weighted * normal).sum(-1, keepdim=True) / max(n, 1)
    grad_x = (r * (weighted - level - normal * along)).reshape(x.shape)
    grad_weight = (g * normal).flip(0).sum(0).to(weight.dtype)
    grad_bias = g.flip(0).sum(0).to(weight.dtype) if has_bias else weight.new_empty(0)
    return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias
