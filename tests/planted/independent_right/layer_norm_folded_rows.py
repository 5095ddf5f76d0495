"""layer_norm in plain torch, right, in another way; written blind."""

from torch import Tensor

OP = "layer_norm"
UNUSUAL = (
    "Rows are added up in float64 by folding: the second half of what is left onto the first, "
    "until one column is left. Sums over rows in the gradient fold the same way."
)
DEVICE = "any"


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    rows, n = x.shape[:-1].numel(), x.shape[-1]
    wide = x.reshape(rows, n).double()
    mean = _folded(wide) / n
    centered = wide - mean
    rstd = 1 / (_folded(centered * centered) / n + eps).sqrt()
    y = centered * rstd * weight.double()
    if bias is not None:
        y = y + bias.double()
    y = y.float().to(x.dtype).reshape(x.shape).contiguous()
    return y, mean.float().reshape(rows), rstd.float().reshape(rows)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    rows, n = x.shape[:-1].numel(), x.shape[-1]
    scale = rstd.double()[:, None]
    normal = (x.reshape(rows, n).double() - mean.double()[:, None]) * scale
    incoming = grad.reshape(rows, n).double()
    weighted = incoming * weight.double()
    inner = weighted - _folded(weighted) / n - normal * (_folded(weighted * normal) / n)
    grad_x = (scale * inner).float().to(x.dtype).reshape(x.shape).contiguous()
    grad_weight = _folded((incoming * normal).T)[:, 0].to(weight.dtype).contiguous()
    if not has_bias:
        return grad_x, grad_weight, weight.new_empty(0)
    return grad_x, grad_weight, _folded(incoming.T)[:, 0].to(weight.dtype).contiguous()


def _folded(rows: Tensor) -> Tensor:
    """The sum of each row [M, N], as [M, 1]."""
    if not rows.shape[1]:
        return rows.new_zeros((rows.shape[0], 1))
    while (n := rows.shape[1]) > 1:
        half = n - n // 2
        folded = rows[:, :half].clone()
        folded[:, : n // 2] += rows[:, half:]
        rows = folded
    return rows
