"""fake_quantize in plain torch, with a fault; written blind.

The gradient of a learned step takes value - inside * ratio: where a weight is infinite, which under
a learned step has the lowest or highest code, its ratio is inf, outside, and 0 * inf is NaN. The
step of that whole block gets NaN, where it should get the weight's value. A user hits it with one
weight that overflowed, or a step so small that weight / step overflows.
"""

import torch
from torch import Tensor

from tercet.formats.fit import blocks_of
from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.rule import rule_of
from tercet.ops.fake_quantize.torch_path import forward

OP = "fake_quantize"
FAULT = (
    "What is clipped is taken out of a step's gradient by a product with 0: an infinite weight, or "
    "an infinite ratio of weight and step, makes it NaN."
)
CAUGHT_BY = "backward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    """As op's fake_quantize_gradient."""
    rule, narrow = rule_of(scheme, method), weight.float()
    wide = torch_path._wide(torch_path._scale(narrow, step, rule), weight, rule)
    ratio, usable = torch_path._ratio(narrow, wide), torch_path._usable(wide)
    inside = (ratio >= rule.clip_low) & (ratio <= rule.clip_high)
    value = codes.float() * (0.5 if rule.shift else 1.0)
    slope = torch.where(usable, value - inside.float() * ratio, 0.0)
    blocks, mask = blocks_of(grad.float() * slope, rule.scheme)
    factor = rule.slope / (mask.sum(-1) * rule.highest).sqrt()
    grad_weight = torch.where(inside & usable, grad.float(), 0.0)
    return grad_weight.to(weight.dtype).contiguous(), (blocks.sum(-1) * factor).contiguous()
