"""layer_norm in plain torch: float64 throughout, sums as products."""

import torch
from torch import Tensor

OP = "layer_norm"
UNUSUAL = (
    "Means and variances are float64 sums over interleaved columns, the gradient forgets the "
    "saved mean and takes it anew from x, and its sums over rows are einsums; each result is "
    "rounded once."
)
DEVICE = "any"


_LANES = 7


def _mean(wide: Tensor) -> Tensor:
    """Of the last axis [.., 1]: every seventh column into a sum of its own, then the sums."""
    parts = [wide[..., lane::_LANES].sum(-1, keepdim=True) for lane in range(_LANES)]
    total = torch.cat(parts, -1).sum(-1, keepdim=True)
    return total / total.new_tensor(float(wide.shape[-1]))


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.double()
    mean = _mean(wide)
    centered = wide - mean
    rstd = (_mean(centered * centered) + eps).rsqrt()
    y = centered * rstd * weight.double()
    if bias is not None:
        y = y + bias.double()
    return (
        y.to(x.dtype).contiguous(),
        mean.reshape(-1).float(),
        rstd.reshape(-1).float(),
    )


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    del mean
    shape = (x.shape[:-1].numel(), weight.numel())
    wide, g = x.double().reshape(shape), grad.double().reshape(shape)
    scale = rstd.double()[:, None]
    normal = (wide - _mean(wide)) * scale
    weighted = g * weight.double()
    along = _mean(weighted * normal)
    grad_x = (weighted - _mean(weighted) - normal * along) * scale
    grad_weight = torch.einsum("mn,mn->n", g, normal).to(weight.dtype)
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = torch.einsum("mn->n", g).to(weight.dtype)
    return grad_x.reshape(x.shape).to(x.dtype).contiguous(), grad_weight, grad_bias
