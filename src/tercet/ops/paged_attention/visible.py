"""Which positions a query sees, and the keys or values of a sequence out of their blocks."""

import torch
from torch import Tensor


def see(part: Tensor, blocks: Tensor, lengths: Tensor, new: int, window: int) -> Tensor:
    """bool [B, Q, N]: query i of a sequence, at position lengths - Q + i, sees position n.

    Args:
        part: keys or values [P, G, S, D].
        blocks: [B, T]; nothing is seen where the table names no block.
        lengths: [B], positions of each sequence, the new ones included.
        new: Q.
        window: how many positions, its own included, a query sees; 0 for all.
    """
    query = lengths.long()[:, None] + torch.arange(-new, 0, device=lengths.device)
    position = torch.arange(blocks.shape[1] * part.shape[2], device=lengths.device)
    distance = query[..., None] - position
    held = _name_blocks(part, blocks).repeat_interleave(part.shape[2], 1)[:, None]
    seen = (distance >= 0) & held
    return seen & (distance < window) if window else seen


def gather(part: Tensor, blocks: Tensor) -> Tensor:
    """Keys or values [P, G, S, D] as [B, T * S, G, D], in the order of each sequence's blocks.

    Entries of the table that name no block give block 0.
    """
    if not part.shape[0]:
        shape = (blocks.shape[0], blocks.shape[1] * part.shape[2], part.shape[1], part.shape[3])
        return part.new_zeros(shape)
    found = part[torch.where(_name_blocks(part, blocks), blocks, 0).long()]
    return found.transpose(2, 3).flatten(1, 2)


def _name_blocks(part: Tensor, blocks: Tensor) -> Tensor:
    return (blocks >= 0) & (blocks < part.shape[0])
