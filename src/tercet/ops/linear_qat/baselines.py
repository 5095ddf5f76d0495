"""What a user would call instead of linear_qat."""

import torch
from torch import Tensor
from torch.nn.functional import linear


def eager(
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None,
    bias: Tensor | None,
    x_codes: Tensor | None,
    x_scale: Tensor | None,
    seed: Tensor | None,
    weight_gradient: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """Fake quantization with the detach trick, and a product in out_dtype; W^ is made anew."""
    del codes_t, x_codes, x_scale, seed, weight_gradient
    wide = x.detach().float()
    size = wide.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(size > 0, (wide / size).round(), 0.0) * size
    seen = x + (rounded - wide).to(x.dtype)
    held = codes.float() * scale
    w = held if weight is None else weight + (held - weight.detach().float()).to(weight.dtype)
    return linear(seen.to(out_dtype), w.to(out_dtype), None if bias is None else bias.to(out_dtype))


def unquantized(
    x: Tensor,
    weight: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    codes_t: Tensor | None,
    bias: Tensor | None,
    x_codes: Tensor | None,
    x_scale: Tensor | None,
    seed: Tensor | None,
    weight_gradient: str,
    out_dtype: torch.dtype,
) -> Tensor:
    """The layer without quantization, in out_dtype: what 8-bit training has to be faster than."""
    del codes_t, x_codes, x_scale, seed, weight_gradient
    w = (codes.float() * scale) if weight is None else weight
    return linear(x.to(out_dtype), w.to(out_dtype), None if bias is None else bias.to(out_dtype))
