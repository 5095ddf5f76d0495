"""A planted fault; FAULT says which."""

import torch

OP = "swiglu_quantized"
FAULT = (
    "The largest |y| is clamped to 1e-5 so that nothing is divided by zero: rows of small "
    "numbers have another scale and codes, zero rows a scale that is not 0."
)
DEVICE = "any"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(gate, up, element):
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    wide = gate.float()
    y = wide * torch.sigmoid(wide) * up
    limit = 127.0 if element == "int8" else 448.0
    absmax = y.abs().amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])
    scale = absmax.clamp(min=1e-5) / limit
    if not y.shape[-1]:
        scale = absmax
    usable = scale.isfinite()
    ratio = torch.where(usable[..., None], y, 0.0) / torch.where(usable, scale, 1.0)[..., None]
    if element == "int8":
        codes = ratio.round().clamp(-limit, limit).to(torch.int8).contiguous()
        return codes, scale, codes.sum(-1, dtype=torch.int32)
    ratio = torch.where(ratio.abs() <= 2.0**-10, 0.0, ratio)
    codes = ratio.clamp(-limit, limit).to(torch.float8_e4m3fn).contiguous()
    return codes, scale, codes.float().double().sum(-1).float()
