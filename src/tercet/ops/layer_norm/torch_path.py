"""layer_norm in plain torch, on any device, in float32."""

from torch import Tensor


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As op.layer_norm."""
    mean = x.float().mean(-1, keepdim=True)
    # again, for what the first sum rounded off: a constant row has to become zeros
    mean = mean + (x.float() - mean).mean(-1, keepdim=True)
    centered = x.float() - mean
    rstd = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = centered * rstd * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype), mean.reshape(-1), rstd.reshape(-1)


def gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's layer_norm_gradient."""
    g, scale = grad.float(), rstd.reshape(*x.shape[:-1], 1)
    normal = (x.float() - mean.reshape(scale.shape)) * scale
    weighted = g * weight.float()
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = scale * (weighted - weighted.mean(-1, keepdim=True) - normal * along)
    # the number of rows is given: -1 cannot be inferred where N is 0
    shape = (x.shape[:-1].numel(), weight.numel())
    grad_weight = (g * normal).reshape(shape).sum(0).to(weight.dtype)
    grad_bias = g.reshape(shape).sum(0).to(weight.dtype) if has_bias else weight.new_empty(0)
    return grad_x.to(x.dtype), grad_weight, grad_bias
