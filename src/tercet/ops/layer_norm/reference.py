"""The meaning of layer_norm, in float64 (Ba, Kiros and Hinton 2016, arXiv:1607.06450)."""

import torch
from torch import Tensor


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """(y [.., N], mean [M], rstd [M]); the variance is that of the row, not an estimate (1/N)."""
    mean = x.double().mean(-1, keepdim=True)
    centered = x.double() - mean
    rstd = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = centered * rstd * weight.double()
    if bias is not None:
        y = y + bias.double()
    return y, mean.reshape(-1), rstd.reshape(-1)


def magnitude(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums and differences with absolute values: of x and the mean, |x| + mean(|x|)."""
    _, _, rstd = reference(x, weight, bias, eps)
    rstd = grown(rstd, eps)
    y = _parts(x, rstd) * weight.double().abs()
    if bias is not None:
        y = y + bias.double().abs()
    return y, x.double().abs().mean(-1).reshape(-1), torch.abs(rstd)


def gradient_magnitude(
    directions: list[Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> dict[str, Tensor]:
    """The same for the gradients: a constant row, or N = 1, cancels to zero."""
    *_, rstd = reference(x, weight, bias, eps)
    rstd = grown(rstd, eps)
    normal, g = _parts(x, rstd), directions[0].double().abs()
    weighted = g * weight.double().abs()
    along = (weighted * normal).mean(-1, keepdim=True)
    size = weighted + weighted.mean(-1, keepdim=True) + normal * along
    rows = (x.shape[:-1].numel(), x.shape[-1])
    return {
        "x": rstd.reshape(*x.shape[:-1], 1) * size,
        "weight": (g * normal).reshape(rows).sum(0),
        "bias": g.reshape(rows).sum(0),
    }


def grown(rstd: Tensor, eps: float) -> Tensor:
    """rstd times (v + |eps|) / (v + eps), v what eps is added to: below 0, it is taken from v."""
    return rstd if eps >= 0 else rstd * (1 - 2 * eps * rstd.square())


def _parts(x: Tensor, rstd: Tensor) -> Tensor:
    size = x.double().abs()
    return (size + size.mean(-1, keepdim=True)) * rstd.reshape(*x.shape[:-1], 1)
