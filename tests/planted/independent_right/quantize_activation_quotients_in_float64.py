"""A right kernel; UNUSUAL says how it is unusual."""

import torch

OP = "quantize_activation"
UNUSUAL = (
    "The largest |x| is that of the least and the greatest; quotients are taken in float64 "
    "and rounded to float32, which is the IEEE quotient."
)
DEVICE = "any"
__all__ = ["forward"]


def forward(x, element):
    limit = 127.0 if element == "int8" else 448.0
    y = x.double()
    if y.shape[-1]:
        least, most = torch.aminmax(y, dim=-1)
        absmax = torch.maximum(most, -least).abs()
    else:
        absmax = y.new_zeros(y.shape[:-1])
    # a tensor: a GPU divides by a number as a product with its reciprocal
    scale = (absmax / torch.full_like(absmax, limit)).float()
    usable = ((scale > 0) & scale.isfinite())[..., None]
    ratio = torch.where(
        usable, y / torch.where(usable, scale.double()[..., None], 1.0), 0.0
    ).float()
    if element == "int8":
        codes = ratio.clamp(-limit, limit).round().to(torch.int8).contiguous()
        return codes, scale, codes.long().sum(-1).int()
    codes = ratio.clamp(-limit, limit).to(torch.float8_e4m3fn).float() + 0.0
    return (
        codes.to(torch.float8_e4m3fn).contiguous(),
        scale,
        (codes.double() * 512).long().sum(-1).double().div(512).float(),
    )
