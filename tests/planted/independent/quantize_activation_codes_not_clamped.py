"""A planted fault; FAULT says which."""

import torch

OP = "quantize_activation"
FAULT = (
    "Int8 codes are not clamped, as max |x| / scale is 127: with a subnormal scale it is not, "
    "and codes wrap around."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(x, element):
    y = x.float()
    limit = 127.0 if element == "int8" else 448.0
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    scale = absmax / torch.full_like(absmax, limit)
    usable = (scale > 0) & scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    if element == "int8":
        codes = ratio.round().to(torch.int8).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    kept = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio)
    codes = kept.clamp(-limit, limit).to(torch.float8_e4m3fn).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
