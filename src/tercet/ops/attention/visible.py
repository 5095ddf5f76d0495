"""Which positions a query sees."""

import torch
from torch import Tensor


def see(new: int, length: int, causal: bool, window: int, device: torch.device) -> Tensor:
    """bool [T, N]: query i, at position N - T + i, sees position n.

    Args:
        new: T.
        length: N.
        causal: whether it sees positions up to its own alone.
        window: how many of these, its own included; 0 for all.
        device: of the result.
    """
    if not causal:
        return torch.ones((new, length), dtype=torch.bool, device=device)
    query = torch.arange(length - new, length, device=device).unsqueeze(1)
    distance = query - torch.arange(length, device=device)
    seen = distance >= 0
    return seen & (distance < window) if window else seen
