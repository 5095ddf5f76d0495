"""The meaning of fake_quantize: codes and scales exact to the bit, gradients by autograd.

Codes come from float32 with IEEE divisions, as formats.encode computes them. The straight-through
gradient is what autograd makes of the paper's own trick (Esser et al. 2020, appendix A): a rounding
is `v + (round(v) - v).detach()`, a gradient is scaled by `g * s + (s - g * s).detach()`.
"""

import torch
from torch import Tensor

from tercet.formats import Scheme, parse_scheme
from tercet.formats.fit import blocks_of
from tercet.formats.packed import expand_blocks

_MULTIPLIERS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def reference(
    weight: Tensor,
    step: Tensor | None = None,
    seed: Tensor | None = None,
    scheme: str = "ternary-channel",
    method: str = "absmean",
    fake_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(fake [N, K] or empty, codes [N, K], scale [R, C]), their values held in float64."""
    kind = parse_scheme(scheme)
    shape = (weight.shape[0], weight.shape[1])
    narrow = weight.detach().float()
    scale = _scale(narrow, step, kind, method)
    ratio, usable = _ratio(narrow, _wide(scale, kind, shape))
    shift = 0.5 if kind.scaling.zero is not None else 0.0
    level = _rounded(ratio - shift, kind, seed)
    value = level.double() + shift
    codes = (2 * value if shift else value).nan_to_num(nan=1.0 if shift else 0.0)
    kept = scale.double() * (0.5 if shift else 1.0)
    if fake_dtype is None:
        return weight.new_empty(0, dtype=torch.float64), codes, kept
    if step is None:
        # held constant: the gradient of the dequantized weight is that of the weight
        flat = value * _wide(scale.double(), kind, shape)
        fake = weight.double() + (flat - weight.double()).detach()
        return fake, codes, kept
    learned = _wide(_step_size(step, scale, kind, method, narrow), kind, shape)
    # an infinite one must not come into the gradients of the others
    finite = torch.where(usable, learned, 1.0)
    inside = _inside(ratio, kind, method) & usable
    divided = torch.where(inside, weight.double() / finite, value)
    fake = (divided + (value - divided).detach()) * finite
    return torch.where(usable, fake, value * _wide(scale.double(), kind, shape)), codes, kept


def gradient_magnitude(
    directions: list[Tensor | None],
    weight: Tensor,
    step: Tensor | None = None,
    seed: Tensor | None = None,
    scheme: str = "ternary-channel",
    method: str = "absmean",
    fake_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Of step: the sum of |grad| (|value| + |ratio|) over what shares it, as it is scaled."""
    way = directions[0]
    if step is None or way is None or fake_dtype is None:
        return {}
    kind = parse_scheme(scheme)
    shape, narrow = (weight.shape[0], weight.shape[1]), weight.detach().float()
    _, codes, kept = reference(weight, step, seed, scheme, method)
    half = 0.5 if kind.scaling.zero is not None else 1.0
    ratio, _ = _ratio(narrow, _wide(kept.float() / half, kind, shape))
    inside = _inside(ratio, kind, method)
    size = codes.abs() * half + torch.where(inside, ratio.abs(), 0.0)
    blocks, _ = blocks_of(way.double().abs() * size, kind)
    return {"step": blocks.double().sum(-1) * _factor(narrow, kind, method)}


def _scale(narrow: Tensor, step: Tensor | None, kind: Scheme, method: str) -> Tensor:
    """float32 [R, C], rounded to the scheme's dtype."""
    if step is not None:
        divisor = torch.tensor([len(kind.element.levels) / 2 if method == "stretched" else 1.0])
        scale = step.detach().float() / divisor.to(step.device)
    elif method == "absmax":
        blocks, _ = blocks_of(narrow, kind)
        # a tensor: on a GPU torch turns division by a number into a product with its reciprocal
        highest = torch.tensor([kind.element.highest], device=narrow.device)
        scale = blocks.abs().amax(-1) / highest
    else:
        blocks, mask = blocks_of(narrow, kind)
        count = mask.double().sum(-1).clamp_min(1)
        scale = 2 * blocks.double().abs().sum(-1) / (count * max(kind.element.highest, 2.0))
    return scale.float().to(kind.scaling.torch_dtype).float()


def _wide(scale: Tensor, kind: Scheme, shape: tuple[int, int]) -> Tensor:
    return expand_blocks(scale, kind.scaling.block(shape), shape)


def _ratio(narrow: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
    """w / scale, 0 where the scale is 0, negative, inf or NaN; and where it is usable."""
    usable = (wide > 0) & wide.isfinite()
    divided = narrow / torch.where(usable, wide, 1.0)
    return torch.where(usable | narrow.isnan(), divided, 0.0), usable


def _rounded(target: Tensor, kind: Scheme, seed: Tensor | None) -> Tensor:
    bounded = target.clamp(kind.element.lowest, kind.element.highest)
    if seed is None:
        return bounded.round()
    low = bounded.floor()
    return low + (_uniform(seed, *target.shape) < bounded - low).float()


def _uniform(seed: Tensor, rows: int, columns: int) -> Tensor:
    """Word k % 4 of Philox block n * ceil(K / 4) + k // 4, its upper 23 bits times 2^-23."""
    blocks, low = -(-columns // 4), 0xFFFFFFFF
    at = torch.arange(rows * blocks, device=seed.device)
    word = [at & low, at >> 32, torch.zeros_like(at), torch.zeros_like(at)]
    key = [seed.reshape(()) & low, (seed.reshape(()) >> 32) & low]
    for _ in range(10):
        left, right = word[0] * _MULTIPLIERS[0], word[2] * _MULTIPLIERS[1]
        word = [
            ((right >> 32) & low) ^ word[1] ^ key[0],
            right & low,
            ((left >> 32) & low) ^ word[3] ^ key[1],
            left & low,
        ]
        key = [(part + weyl) & low for part, weyl in zip(key, _WEYL, strict=True)]
    bits = torch.stack(word, 1).reshape(rows, 4 * blocks)[:, :columns]
    return (bits >> 9).double().mul(2.0**-23).float()


def _inside(ratio: Tensor, kind: Scheme, method: str) -> Tensor:
    """Whether a gradient goes through: the levels' range, or 99 % of the stretched one."""
    if method == "stretched":
        return ratio.abs() <= torch.tensor(0.99 * len(kind.element.levels) / 2).float()
    return (ratio >= kind.element.lowest) & (ratio <= kind.element.highest)


def _factor(narrow: Tensor, kind: Scheme, method: str) -> Tensor:
    """d scale / d step times the gradient scale 1 / sqrt(n highest), [R, C]."""
    count = blocks_of(narrow, kind)[1].double().sum(-1)
    slope = 2 / len(kind.element.levels) if method == "stretched" else 1.0
    return slope / (count * kind.element.highest).sqrt()


def _step_size(step: Tensor, scale: Tensor, kind: Scheme, method: str, narrow: Tensor) -> Tensor:
    """The scale [R, C] as a function of the step: its scaled gradient, rounded straight through."""
    scaled = step.double() * _factor(narrow, kind, method)
    return scaled + (scale.double() - scaled).detach()
