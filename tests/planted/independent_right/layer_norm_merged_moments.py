"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "layer_norm"
UNUSUAL = (
    "Right, but unusual: mean and squared deviations of pieces are merged pairwise (Chan et"
    " al.), as a tree."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_PIECE = 24
# count, mean [rows], sum of squared deviations [rows]
Moments = tuple[int, Tensor, Tensor]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    n, rows = x.shape[-1], x.shape[:-1].numel()
    flat = x.reshape(rows, n).double().contiguous()
    if not n:
        none = torch.full((rows,), torch.nan, dtype=torch.float32, device=x.device)
        return torch.empty(x.shape, dtype=x.dtype, device=x.device), none, none.clone()
    level = [_of(piece) for piece in flat.split(_PIECE, 1)]
    while len(level) > 1:
        pairs = [_merge(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    _, mean, squares = level[0]
    rstd = (squares / n + eps).rsqrt()
    y = (flat - mean[:, None]) * rstd[:, None] * weight.double()
    if bias is not None:
        y = y + bias.double()
    return y.to(x.dtype).reshape(x.shape), mean.float(), rstd.float()


def _of(piece: Tensor) -> Moments:
    mean = piece.mean(1)
    return piece.shape[1], mean, (piece - mean[:, None]).square().sum(1)


def _merge(left: Moments, right: Moments) -> Moments:
    (n, mean, squares), (m, other, more) = left, right
    apart = other - mean
    return n + m, mean + apart * (m / (n + m)), squares + more + apart.square() * (n * m / (n + m))


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient; both sums over rows are one product with a row of ones."""
    n, rows = weight.numel(), rstd.numel()
    scale = rstd.double()[:, None]
    normal = (x.reshape(rows, n).double() - mean.double()[:, None]) * scale
    g = grad.reshape(rows, n).double().contiguous()
    weighted = g * weight.double()
    inner = (weighted * normal).sum(1, keepdim=True) / max(n, 1)
    grad_x = scale * (weighted - weighted.sum(1, keepdim=True) / max(n, 1) - normal * inner)
    ones = torch.ones((1, rows), dtype=torch.float64, device=x.device)
    both = ones @ torch.cat((g * normal, g), 1)
    grad_bias = both[0, n:].to(weight.dtype) if has_bias else weight.new_empty(0)
    # a view of `both` would keep its memory
    return grad_x.to(x.dtype).contiguous().reshape(x.shape), both[0, :n].to(weight.dtype), grad_bias
