"""A planted fault; FAULT says which."""

from torch import Tensor

from tercet.ops.layer_norm.torch_path import gradient

OP = "layer_norm"
FAULT = "The variance is E[x^2] - E[x]^2: it cancels where the mean is far from zero."
CAUGHT_BY = "forward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    mean = x.float().mean(-1, keepdim=True)
    # again, for what the first sum rounded off: a constant row has to become zeros
    mean = mean + (x.float() - mean).mean(-1, keepdim=True)
    centered = x.float() - mean
    rstd = (x.float().square().mean(-1, keepdim=True) - mean.square() + eps).rsqrt()
    y = centered * rstd * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype), mean.reshape(-1), rstd.reshape(-1)
