"""A right kernel; UNUSUAL says how it is unusual."""

from torch import Tensor

OP = "layer_norm"
UNUSUAL = "Works on the transposed matrix in double precision: statistics along the first axis."
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _turned(x: Tensor) -> Tensor:
    """float64 [N, M], contiguous."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1]).t().contiguous().double()


def _back(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype).t().contiguous().reshape(like.shape)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    turned = _turned(x)
    mean = turned.mean(0)
    centered = turned - mean
    rstd = 1 / (centered * centered).mean(0).add(eps).sqrt()
    y = centered * rstd * weight.double()[:, None]
    if bias is not None:
        y += bias.double()[:, None]
    return _back(y, x), mean.float(), rstd.float()


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    way, normal = _turned(grad), (_turned(x) - mean.double()) * rstd.double()
    weighted = way * weight.double()[:, None]
    off = weighted.mean(0) + normal * (weighted * normal).mean(0)
    grad_x = (weighted - off) * rstd.double()
    grad_weight = (way * normal).sum(1).to(weight.dtype)
    grad_bias = way.sum(1).to(weight.dtype) if has_bias else weight.new_empty(0)
    return _back(grad_x, x), grad_weight, grad_bias
