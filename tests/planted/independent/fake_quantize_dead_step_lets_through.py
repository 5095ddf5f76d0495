"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.formats.fit import blocks_of
from tercet.formats.packed import expand_blocks
from tercet.ops.fake_quantize.rule import rule_of
from tercet.ops.fake_quantize.torch_path import forward

OP = "fake_quantize"
FAULT = (
    "A step that is not positive and finite has a ratio of 0, which lies inside the clip range: "
    "the weights' gradient goes through it, where it must be 0."
)
CAUGHT_BY = "backward"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    """As op's fake_quantize_gradient."""
    rule, narrow = rule_of(scheme, method), weight.float()
    shape = (weight.shape[0], weight.shape[1])
    scale = (step / torch.full_like(step, rule.divisor)).to(rule.dtype).float()
    wide = expand_blocks(scale, rule.scheme.scaling.block(shape), shape)
    usable = (wide > 0) & wide.isfinite()
    ratio = torch.where(usable | narrow.isnan(), narrow / torch.where(usable, wide, 1.0), 0.0)
    inside = (ratio >= rule.clip_low) & (ratio <= rule.clip_high)
    value = codes.float() * (0.5 if rule.shift else 1.0)
    slope = torch.where(usable, value - torch.where(inside, ratio, 0.0), 0.0)
    blocks, mask = blocks_of(grad.float() * slope, rule.scheme)
    factor = rule.slope / (mask.sum(-1) * rule.highest).sqrt()
    grad_weight = torch.where(inside, grad.float(), 0.0)
    return grad_weight.to(weight.dtype).contiguous(), (blocks.sum(-1) * factor).contiguous()
