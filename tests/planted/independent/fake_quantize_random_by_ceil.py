"""fake_quantize in plain torch, with a fault; written blind.

low + (u < w - low) is the same as ceil(w - u), and that is one operation; but w - u is rounded to
float32. Of int8, where w is about 100 and a step of float32 2^-17, a difference that is a little
above an integer becomes that integer, and is not rounded up: about one weight in a million has
another code than every other implementation gives for the seed. A user hits it with any large
layer that is trained so on two kinds of device.
"""

import torch
from torch import Tensor

from tercet.kernel.device.philox import uniform
from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.rule import rule_of
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = (
    "Rounding at random is ceil(w - u) in float32, whose difference is rounded: of int8 elements "
    "about one code in a million is one too low."
)
CAUGHT_BY = "forward"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As op's fake_quantize."""
    if seed is None:
        return torch_path.forward(weight, step, seed, scheme, method, fake_dtype)
    rule, narrow = rule_of(scheme, method), weight.float()
    scale = torch_path._scale(narrow, step, rule)
    wide = torch_path._wide(scale, weight, rule)
    ratio = torch_path._ratio(narrow, wide)
    bounded = (ratio - rule.shift).clamp(rule.lowest, rule.highest)
    value = (bounded - uniform(seed, *ratio.shape)).ceil() + rule.shift
    units = 2 * value if rule.shift else value
    codes = units.nan_to_num(nan=2 * rule.shift).to(torch.int8)
    fake = weight.new_empty(0) if fake_dtype is None else (value * wide).to(fake_dtype)
    scale = scale * 0.5 if rule.shift else scale
    return fake.contiguous(), codes.contiguous(), scale.contiguous()
