"""Where positions are: their angles, and the blocks that sequences of one length lie in."""

from collections.abc import Sequence

import torch
from torch import Tensor


def angle_tables(
    inverse: Sequence[Tensor], positions: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """cos and sin, float32 [positions, R], of each kind of rotation, whose inverses are [R]."""
    places = torch.arange(positions, device=inverse[0].device).float()
    turned = [torch.outer(places, one) for one in inverse]
    return tuple(one.cos() for one in turned), tuple(one.sin() for one in turned)


def own_blocks(batch: int, device: torch.device) -> Tensor:
    """int32 [B, 1]: all positions of a sequence are one block of the ops'."""
    return torch.arange(batch, dtype=torch.int32, device=device).unsqueeze(1)
