"""KL divergence of next-token distributions from those of the uncompressed model."""

import torch
from torch import Tensor

_ROWS = 128


def log_probabilities(logits: Tensor) -> Tensor:
    """log p [positions, vocabulary] of logits [.., vocabulary], float32."""
    return logits.flatten(0, -2).float().log_softmax(-1)


def summed_kl(reference: Tensor, logits: Tensor) -> float:
    """Sum over positions of KL(p || q), in nats.

    Args:
        reference: log p [positions, vocabulary].
        logits: of q [.., vocabulary].
    """
    flat = logits.flatten(0, -2)
    total = torch.zeros((), dtype=torch.float64, device=flat.device)
    # a few rows at a time: no second array of this size exists
    for first in range(0, len(flat), _ROWS):
        log_p = reference[first : first + _ROWS]
        log_q = flat[first : first + _ROWS].float().log_softmax(-1)
        total += (log_p.exp() * (log_p - log_q)).sum(-1).double().sum()
    return float(total)
