"""What a user would call instead of fake_quantize."""

import torch
from torch import Tensor

from tercet.ops.fake_quantize.rule import rule_of


def eager(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> Tensor:
    """The usual lines of torch with the detach trick; scales in float32, no scale of gradients.

    Returns the dequantized weight where it is asked for, else the codes.
    """
    del seed
    rule, wide = rule_of(scheme, method), weight.float()
    blocks = wide.reshape(1, 1, -1)
    if not rule.tensor:
        blocks = wide.view(len(wide), -1, rule.group(wide.shape[1]))
    if step is not None:
        scale = step[..., None] / rule.divisor
    elif rule.mean:
        scale = blocks.abs().mean(-1, keepdim=True) * (2 / rule.divisor)
    else:
        scale = blocks.abs().amax(-1, keepdim=True) / rule.divisor
    ratio = blocks / scale
    if rule.learned:
        ratio = ratio.clamp(rule.clip_low, rule.clip_high)
    level = (ratio - rule.shift).round().clamp(rule.lowest, rule.highest) + rule.shift
    codes = (2 * level if rule.shift else level).to(torch.int8).reshape(weight.shape)
    if fake_dtype is None:
        return codes
    if rule.learned:
        fake = (ratio + (level - ratio).detach()) * scale
    else:
        fake = blocks + (level * scale - blocks).detach()
    return fake.reshape(weight.shape).to(fake_dtype)
