"""A right kernel that is unusual; FAULT says how."""

import torch
from torch import Tensor

OP = "layer_norm"
FAULT = "None: means are products with a vector of ones in float64, columns taken from the last on."
CAUGHT_BY = ""
DEVICE = "any"

__all__ = ["forward", "gradient"]


def _rows(x: Tensor) -> Tensor:
    return x.double().reshape(x.shape[:-1].numel(), x.shape[-1]).flip(-1)


def _mean(rows: Tensor) -> Tensor:
    """[M, 1]; NaN where there are no columns."""
    ones = torch.ones((rows.shape[1], 1), dtype=torch.float64, device=rows.device)
    return rows @ ones / torch.full((1, 1), rows.shape[1], dtype=torch.float64, device=rows.device)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    rows = _rows(x)
    mean = _mean(rows)
    centered = rows - mean
    rstd = (_mean(centered * centered) + eps) ** -0.5
    y = centered * rstd * weight.double().flip(-1)
    if bias is not None:
        y = y + bias.double().flip(-1)
    y = y.flip(-1).reshape(x.shape).to(x.dtype)
    return y.contiguous(), mean.float().reshape(-1), rstd.float().reshape(-1)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    ways, scale = _rows(grad), rstd.double()[:, None]
    normal = (_rows(x) - mean.double()[:, None]) * scale
    weighted = ways * weight.double().flip(-1)
    grad_x = scale * (weighted - _mean(weighted) - normal * _mean(weighted * normal))
    grad_bias = weight.new_empty(0)
    if has_bias:
        grad_bias = ways.sum(0).flip(-1).to(weight.dtype)
    grad_weight = (ways * normal).sum(0).flip(-1).to(weight.dtype)
    return grad_x.flip(-1).reshape(x.shape).to(x.dtype).contiguous(), grad_weight, grad_bias
