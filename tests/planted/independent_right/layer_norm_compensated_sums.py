"""layer_norm in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

OP = "layer_norm"
UNUSUAL = "Every sum is a tree whose nodes keep what they rounded off (Knuth's two-sum)."


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    wide = x.float()
    mean = _mean(wide)
    off = _mean(wide - mean)
    # of a row with inf the mean is inf, and nothing corrects it
    mean = mean + torch.where(off.isfinite() | mean.isnan(), off, torch.zeros_like(off))
    centered = wide - mean
    rstd = (_mean(centered * centered) + eps).rsqrt()
    y = centered * rstd * weight.float()
    if bias is not None:
        y = y + bias.float()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)
    return out, mean.reshape(-1), rstd.reshape(-1)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    m, n = x.shape[:-1].numel(), weight.numel()
    scale = rstd.reshape(m, 1)
    d = grad.reshape(m, n).float()
    normal = (x.reshape(m, n).float() - mean.reshape(m, 1)) * scale
    weighted = d * weight.float()
    grad_x = scale * (weighted - _mean(weighted) - normal * _mean(weighted * normal))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(grad_x.reshape(x.shape))
    grad_weight = _sum((d * normal).T)[:, 0].to(weight.dtype).contiguous()
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = _sum(d.T)[:, 0].to(weight.dtype).contiguous()
    return out, grad_weight, grad_bias


def _mean(rows: Tensor) -> Tensor:
    count = rows.shape[-1]
    if not count:
        return rows.new_full((*rows.shape[:-1], 1), torch.nan)
    return _sum(rows) / count


def _sum(rows: Tensor) -> Tensor:
    """[..., 1]: the sum along the last axis of float32 rows."""
    count = rows.shape[-1]
    if not count:
        return rows.new_zeros((*rows.shape[:-1], 1))
    width = 1 << (count - 1).bit_length()
    high = torch.nn.functional.pad(rows, (0, width - count))
    low = torch.zeros_like(high)
    while high.shape[-1] > 1:
        left, right = high.tensor_split(2, -1)
        total = left + right
        virtual = total - left
        lost = (left - (total - virtual)) + (right - virtual)
        first, second = low.tensor_split(2, -1)
        low = first + second + lost
        high = total
    # beside inf there is nothing to add
    return high + torch.where(low.isfinite(), low, torch.zeros_like(low))
