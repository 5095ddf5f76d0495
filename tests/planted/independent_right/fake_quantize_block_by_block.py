"""A right but unusual kernel; UNUSUAL says how."""

import math

import numpy
import torch
from torch import Tensor

from tercet.kernel.device.philox import uniform
from tercet.ops.fake_quantize.rule import Rule, rule_of

OP = "fake_quantize"
UNUSUAL = (
    "Right, but unusual: a Python loop over the blocks that share a scale, whose sums numpy makes."
)
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
    rule, (n, k) = rule_of(scheme, method), weight.shape
    codes = torch.empty((n, k), dtype=torch.int8, device=weight.device)
    scale = torch.empty(rule.scale_shape(n, k), dtype=torch.float32, device=weight.device)
    shape = (0,) if fake_dtype is None else (n, k)
    made = torch.empty(shape, dtype=fake_dtype or weight.dtype, device=weight.device)
    random = None if seed is None else uniform(seed, n, k)
    for r, c, rows, columns in _blocks(rule, n, k):
        w = weight[rows, columns].float()
        given = None if step is None else step[r, c]
        size = _scale(w, given, rule)
        value = _value(w, size, None if random is None else random[rows, columns], rule)
        units = value * 2 if rule.shift else value
        codes[rows, columns] = torch.where(units.isnan(), 2 * rule.shift, units).to(torch.int8)
        scale[r, c] = size * 0.5 if rule.shift else size
        if fake_dtype is not None:
            made[rows, columns] = (value * size).to(fake_dtype)
    return made, codes, scale


def gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    """As op's fake_quantize_gradient."""
    rule, (n, k) = rule_of(scheme, method), weight.shape
    grad_weight = torch.zeros((n, k), dtype=weight.dtype, device=weight.device)
    grad_step = torch.zeros(step.shape, dtype=torch.float32, device=weight.device)
    for r, c, rows, columns in _blocks(rule, n, k):
        w, g = weight[rows, columns].float(), grad[rows, columns].float()
        size = _scale(w, step[r, c], rule)
        if not (size > 0 and size < math.inf):
            continue
        ratio = w / size
        inside = (ratio >= rule.clip_low) & (ratio <= rule.clip_high)
        value = codes[rows, columns].float() * (0.5 if rule.shift else 1.0)
        slope = value - torch.where(inside, ratio, 0.0)
        factor = rule.slope / math.sqrt(w.numel() * rule.highest)
        grad_step[r, c] = (g.double() * slope.double()).sum() * factor
        grad_weight[rows, columns] = torch.where(inside, g, 0.0).to(weight.dtype)
    return grad_weight, grad_step


def _blocks(rule: Rule, n: int, k: int):
    """(row and column of the scale, rows and columns of W) of each block that shares one."""
    height, width = rule.scheme.scaling.block((n, k))
    height, width = max(height, 1), max(width, 1)
    shape = rule.scale_shape(n, k)
    for r in range(shape[0]):
        for c in range(shape[1]):
            rows = slice(r * height, min((r + 1) * height, n))
            yield r, c, rows, slice(c * width, min((c + 1) * width, k))


def _scale(w: Tensor, step: Tensor | None, rule: Rule) -> Tensor:
    """Of one block, a scalar; rounded to the scheme's dtype."""
    if rule.mean:
        total = numpy.abs(w.double().numpy()).sum()
        # as a tensor: 0 / 0 is NaN
        count = max(w.numel(), 1)
        found = torch.tensor(2 * float(total), dtype=torch.float64) / (count * rule.divisor)
        if not w.numel():
            found = torch.tensor(torch.nan, dtype=torch.float64)
    elif step is not None:
        found = step / torch.tensor(rule.divisor, dtype=torch.float32)
    else:
        top = w.abs().amax() if w.numel() else torch.tensor(0.0, dtype=torch.float32)
        found = top / torch.tensor(rule.divisor, dtype=torch.float32)
    return found.float().to(rule.dtype).float()


def _value(w: Tensor, size: Tensor, random: Tensor | None, rule: Rule) -> Tensor:
    usable = bool(size > 0) and bool(size < math.inf)
    ratio = w / size if usable else torch.where(w.isnan(), w, 0.0)
    target = (ratio - rule.shift).clamp(rule.lowest, rule.highest)
    if random is None:
        level = target.round()
    else:
        low = target.floor()
        level = torch.where(random < target - low, low + 1, low)
    return level + rule.shift
