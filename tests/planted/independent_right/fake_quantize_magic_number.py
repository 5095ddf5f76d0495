"""fake_quantize in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

from tercet.formats.fit import blocks_of
from tercet.kernel.device.philox import uniform
from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.rule import rule_of

OP = "fake_quantize"
UNUSUAL = (
    "Quotients in float64, rounded once to float32; levels by adding and taking off 1.5 * 2^23; "
    "rounding at random by comparing in units of 2^-23; the step's gradient summed in float64."
)
DEVICE = "any"

_MAGIC = 1.5 * 2.0**23


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's fake_quantize."""
    rule, narrow = rule_of(scheme, method), weight.float()
    scale = torch_path._scale(narrow, step, rule)
    wide = torch_path._wide(scale, weight, rule)
    bounded = (_ratio(narrow, wide) - rule.shift).clamp(rule.lowest, rule.highest)
    if seed is None:
        level = (bounded + _MAGIC) - _MAGIC
    else:
        low = bounded.floor()
        fraction = (bounded - low).double() * 2.0**23
        level = low + (uniform(seed, *bounded.shape).double() * 2.0**23 < fraction)
    value = level + (rule.shift or 0.0)
    units = 2 * value if rule.shift else value
    codes = torch.where(units.isnan(), 2 * rule.shift, units).to(torch.int8)
    fake = weight.new_empty(0) if fake_dtype is None else (value * wide).to(fake_dtype)
    scale = scale * 0.5 if rule.shift else scale
    return fake.contiguous(), codes.contiguous(), scale.contiguous()


def gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    """As op's fake_quantize_gradient."""
    rule, narrow = rule_of(scheme, method), weight.float()
    wide = torch_path._wide(torch_path._scale(narrow, step, rule), weight, rule)
    ratio, usable = _ratio(narrow, wide), (wide > 0) & wide.isfinite()
    inside = (ratio >= rule.clip_low) & (ratio <= rule.clip_high)
    value = codes.double() * (0.5 if rule.shift else 1.0)
    slope = torch.where(usable, value - torch.where(inside, ratio, 0.0).double(), 0.0)
    blocks, mask = blocks_of(grad.double() * slope, rule.scheme)
    factor = rule.slope / (mask.sum(-1).double() * rule.highest).sqrt()
    grad_weight = torch.where(inside & usable, grad.float(), 0.0).to(weight.dtype)
    return grad_weight.contiguous(), (blocks.sum(-1) * factor).float().contiguous()


def _ratio(narrow: Tensor, wide: Tensor) -> Tensor:
    usable = (wide > 0) & wide.isfinite()
    divided = (narrow.double() / torch.where(usable, wide, 1.0).double()).float()
    return torch.where(usable | narrow.isnan(), divided, 0.0)
