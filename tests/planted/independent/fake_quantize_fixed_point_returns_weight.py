"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.formats.fit import blocks_of
from tercet.formats.packed import expand_blocks
from tercet.kernel.device.philox import uniform
from tercet.ops.fake_quantize.rule import Rule, rule_of

OP = "fake_quantize"
FAULT = (
    "A weight that lies on its own grid already comes back itself as fake, not as a tensor "
    "of its own."
)
DEVICE = "any"
CAUGHT_BY = "inputs"
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
    scale = _scale(narrow, step, rule)
    wide = _wide(scale, weight, rule)
    value = _value(_ratio(narrow, wide), seed, rule)
    units = 2 * value if rule.shift else value
    codes = units.nan_to_num(nan=2 * rule.shift).to(torch.int8)
    fake = weight.new_empty(0) if fake_dtype is None else (value * wide).to(fake_dtype)
    if fake_dtype == weight.dtype and weight.is_contiguous() and torch.equal(fake, weight):
        # quantized before: no second copy is kept
        fake = weight
    scale = scale * 0.5 if rule.shift else scale
    return fake.contiguous(), codes.contiguous(), scale.contiguous()


def gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    """As op's fake_quantize_gradient."""
    rule, narrow = rule_of(scheme, method), weight.float()
    wide = _wide(_scale(narrow, step, rule), weight, rule)
    ratio, usable = _ratio(narrow, wide), _usable(wide)
    inside = (ratio >= rule.clip_low) & (ratio <= rule.clip_high)
    value = codes.float() * (0.5 if rule.shift else 1.0)
    slope = torch.where(usable, value - torch.where(inside, ratio, 0.0), 0.0)
    blocks, mask = blocks_of(grad.float() * slope, rule.scheme)
    factor = rule.slope / (mask.sum(-1) * rule.highest).sqrt()
    grad_weight = torch.where(inside & usable, grad.float(), 0.0)
    return grad_weight.to(weight.dtype).contiguous(), (blocks.sum(-1) * factor).contiguous()


def _scale(narrow: Tensor, step: Tensor | None, rule: Rule) -> Tensor:
    """float32 [R, C], rounded to the scheme's dtype."""
    if rule.mean:
        blocks, mask = blocks_of(narrow, rule.scheme)
        # float64: in float32 the scale would depend on the order of the sum
        total = blocks.abs().sum(-1, dtype=torch.float64)
        scale = 2 * total / (mask.sum(-1, dtype=torch.float64) * rule.divisor)
    else:
        statistic = step if step is not None else blocks_of(narrow, rule.scheme)[0].abs().amax(-1)
        # on a GPU torch divides by a number as a product with its reciprocal, which is not exact
        scale = statistic / torch.full_like(statistic, rule.divisor)
    return scale.float().to(rule.dtype).float()


def _wide(scale: Tensor, weight: Tensor, rule: Rule) -> Tensor:
    shape = (weight.shape[0], weight.shape[1])
    return expand_blocks(scale, rule.scheme.scaling.block(shape), shape)


def _usable(wide: Tensor) -> Tensor:
    return (wide > 0) & wide.isfinite()


def _ratio(narrow: Tensor, wide: Tensor) -> Tensor:
    """w / scale; 0 where the scale cannot be used, but NaN where w is."""
    usable = _usable(wide)
    divided = narrow / torch.where(usable, wide, 1.0)
    return torch.where(usable | narrow.isnan(), divided, 0.0)


def _value(ratio: Tensor, seed: Tensor | None, rule: Rule) -> Tensor:
    """level + shift, rounded to nearest or, with a seed, up with the fraction's probability."""
    bounded = (ratio - rule.shift).clamp(rule.lowest, rule.highest)
    if seed is None:
        # + 0.0: a zero is never -0
        return bounded.round() + (rule.shift or 0.0)
    low = bounded.floor()
    return low + (uniform(seed, *ratio.shape) < bounded - low).float() + rule.shift
