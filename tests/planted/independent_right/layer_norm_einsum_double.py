"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "layer_norm"
UNUSUAL = (
    "Einsum in float64, rows one chunk of 7 at a time; the gradient takes the mean again from "
    "x and only rstd as saved."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    n = x.shape[-1]
    rows = x.reshape(x.shape[:-1].numel(), n)
    y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    mean = torch.full((len(rows),), torch.nan, dtype=torch.float32, device=x.device)
    rstd = mean.clone()
    for first in range(0, len(rows) if n else 0, 7):
        part = slice(first, first + 7)
        wide = rows[part].double()
        level = wide.mean(-1)
        centered = wide - level[:, None]
        root = (torch.einsum("mn,mn->m", centered, centered) / n + eps).rsqrt()
        out = torch.einsum("mn,m,n->mn", centered, root, weight.double())
        y[part] = (out if bias is None else out + bias.double()).to(x.dtype)
        mean[part], rstd[part] = level.float(), root.float()
    return y.reshape(x.shape), mean, rstd


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    n = x.shape[-1]
    wide = x.reshape(x.shape[:-1].numel(), n).double()
    d = grad.reshape(wide.shape).double()
    normal = torch.einsum("mn,m->mn", wide - wide.mean(-1, keepdim=True), rstd.double())
    weighted = d * weight.double()
    level = weighted.mean(-1, keepdim=True)
    along = (torch.einsum("mn,mn->m", weighted, normal) / max(n, 1))[:, None]
    grad_x = rstd.double()[:, None] * (weighted - level - normal * along)
    grad_weight = torch.einsum("mn,mn->n", d, normal).to(weight.dtype)
    grad_bias = d.sum(0).to(weight.dtype) if has_bias else weight.new_empty(0)
    return grad_x.to(x.dtype).reshape(x.shape).contiguous(), grad_weight.contiguous(), grad_bias
