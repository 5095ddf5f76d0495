"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.formats.fit import blocks_of
from tercet.formats.packed import expand_blocks
from tercet.kernel.device.philox import uniform
from tercet.ops.fake_quantize.rule import Rule, rule_of
from tercet.ops.fake_quantize.torch_path import gradient

OP = "fake_quantize"
FAULT = (
    "With absmean the mean of a row's last group is taken over the whole group size, also where K "
    "leaves it fewer columns: its scale is too small there."
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
    rule, narrow = rule_of(scheme, method), weight.float()
    shape = (weight.shape[0], weight.shape[1])
    blocks, _ = blocks_of(narrow, rule.scheme)
    if step is not None:
        exact = step / torch.full_like(step, rule.divisor)
    elif rule.mean:
        count = blocks.shape[-1]
        exact = 2 * blocks.abs().sum(-1, dtype=torch.float64) / (count * rule.divisor)
    else:
        most = blocks.abs().amax(-1)
        exact = most / torch.full_like(most, rule.divisor)
    scale = exact.float().to(rule.dtype).float()
    wide = expand_blocks(scale, rule.scheme.scaling.block(shape), shape)
    value = _value(_ratio(narrow, wide), seed, rule)
    units = 2 * value if rule.shift else value
    codes = units.nan_to_num(nan=2 * rule.shift).to(torch.int8)
    fake = weight.new_empty(0) if fake_dtype is None else (value * wide).to(fake_dtype)
    scale = scale * 0.5 if rule.shift else scale
    return fake.contiguous(), codes.contiguous(), scale.clone(memory_format=torch.contiguous_format)


def _ratio(narrow: Tensor, wide: Tensor) -> Tensor:
    usable = (wide > 0) & wide.isfinite()
    divided = narrow / torch.where(usable, wide, 1.0)
    return torch.where(usable | narrow.isnan(), divided, 0.0)


def _value(ratio: Tensor, seed: Tensor | None, rule: Rule) -> Tensor:
    bounded = (ratio - rule.shift).clamp(rule.lowest, rule.highest)
    if seed is None:
        return bounded.round() + (rule.shift or 0.0)
    low = bounded.floor()
    return low + (uniform(seed, *ratio.shape) < bounded - low).float() + rule.shift
