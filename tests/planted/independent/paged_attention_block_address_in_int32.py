"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.paged_attention import torch_path

OP = "paged_attention"
FAULT = (
    "The place of a block, its number times the stride of blocks, is formed in int32 as the table "
    "is: in a cache of 2^31 elements and more it wraps around and other memory is read, or refused."
)
CAUGHT_BY = "values"
DEVICE = "any"

__all__ = ["forward"]


def _taken(part: Tensor | None, named: Tensor, known: Tensor) -> Tensor | None:
    """The blocks [B T, ..] that a table names, in its order; zeros where it names none."""
    if part is None:
        return None
    held = part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part
    last = sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
    flat = torch.as_strided(held, (last + 1,), (1,))
    at = named * part.stride(0)
    for axis in range(1, part.dim()):
        steps = torch.arange(part.shape[axis], device=part.device) * part.stride(axis)
        at = at[..., None] + steps
    found = flat[at.long()]
    shape = (-1, *[1] * (part.dim() - 1))
    return torch.where(known.view(shape), found, torch.zeros_like(found)).view(part.dtype)


def forward(
    q: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, lengths: Tensor,
    key_scales: Tensor | None, value_scales: Tensor | None, *options: float,
) -> Tensor:  # fmt: skip
    """As op.paged_attention, on the blocks that the table names, side by side."""
    flat = blocks.reshape(-1)
    if not keys.numel() or not flat.numel():
        return torch_path.forward(
            q, keys, values, blocks, lengths, key_scales, value_scales, *options
        )
    known = (flat >= 0) & (flat < keys.shape[0])
    named = torch.where(known, flat, 0)
    order = torch.arange(len(flat), device=flat.device, dtype=torch.int32)
    table = torch.where(known, order, -1).view(blocks.shape)
    parts = [_taken(each, named, known) for each in (keys, values, key_scales, value_scales)]
    return torch_path.forward(q, *parts[:2], table, lengths, *parts[2:], *options)
