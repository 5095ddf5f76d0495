"""A right kernel; UNUSUAL says how it is unusual."""

import torch

from tercet.ops.fake_quantize import torch_path
from tercet.ops.fake_quantize.rule import rule_of

OP = "fake_quantize"
UNUSUAL = (
    "Without a seed and with scales of rows or groups, the two halves of the rows are "
    "quantized apart and joined."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(weight, step, seed, scheme, method, fake_dtype):
    n = weight.shape[0]
    if seed is not None or rule_of(scheme, method).tensor or n < 2:
        return torch_path.forward(weight, step, seed, scheme, method, fake_dtype)
    cut = n // 2 + 1
    halves = [
        torch_path.forward(
            weight[part], None if step is None else step[part], None, scheme, method, fake_dtype
        )
        for part in (slice(cut, n), slice(0, cut))
    ]
    (fake_b, codes_b, scale_b), (fake_a, codes_a, scale_a) = halves
    fake = torch.cat((fake_a, fake_b)) if fake_dtype is not None else fake_a
    return fake, torch.cat((codes_a, codes_b)), torch.cat((scale_a, scale_b))


def gradient(grad, weight, step, codes, scheme, method):
    n = weight.shape[0]
    if rule_of(scheme, method).tensor or n < 2:
        return torch_path.gradient(grad, weight, step, codes, scheme, method)
    parts = [
        torch_path.gradient(grad[p], weight[p], step[p], codes[p], scheme, method)
        for p in (slice(0, n // 2), slice(n // 2, n))
    ]
    return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])
