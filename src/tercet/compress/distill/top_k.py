"""Divergence from cached targets: over the k likeliest tokens and all others as one."""

from math import log
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

_TOKENS = 256
# the logarithm of the smallest number in float32: of a probability that is 0 there
_LOWEST = log(2.0**-149)


def top_k_divergence(
    hidden: Tensor,
    head: Tensor,
    targets: tuple[Tensor, Tensor, Tensor],
    *,
    temperature: float = 1.0,
    beta: float = 0.0,
) -> Tensor:
    """What `linear_kl` is, of the distributions over k + 1 classes: the k tokens, and the rest.

    By the log sum inequality the forward divergence is never more than that of the whole
    distributions; with k = V it is the same. Logits exist 256 tokens at a time, and are computed
    again in the backward pass.

    Args:
        hidden: [B, T, H], the student's.
        head: [V, H].
        targets: ids [B, T, k], log_p [B, T, k] and tail [B, T], as `Targets.read` gives them.
        temperature: that of the targets.
        beta: as of `linear_kl`.

    Returns:
        The mean over tokens times temperature^2, a float32 scalar.
    """
    ids, log_p, tail = targets
    k = ids.shape[-1]
    flat = hidden.reshape(-1, hidden.shape[-1])
    parts = (flat, ids.reshape(-1, k), log_p.reshape(-1, k), tail.reshape(-1))
    again = cast(Any, checkpoint)
    sums: list[Tensor] = []
    for first in range(0, len(flat), _TOKENS):
        piece = [part[first : first + _TOKENS] for part in parts]
        sums.append(again(_sum, *piece, head, temperature, beta, use_reentrant=False))
    return torch.stack(sums).sum() * (temperature**2 / len(flat))


def _sum(
    hidden: Tensor,
    ids: Tensor,
    log_p: Tensor,
    tail: Tensor,
    head: Tensor,
    temperature: float,
    beta: float,
) -> Tensor:
    # under autocast the product would be rounded to bfloat16
    with torch.autocast(hidden.device.type, enabled=False):
        logits = (hidden.float() @ head.float().T) / temperature
    log_q = logits.log_softmax(-1)
    # the rest by summing it: 1 - (sum of the k) would cancel where the student is sure
    rest = log_q.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    own = torch.cat((log_q.gather(-1, ids), rest.clamp_min(_LOWEST)), -1)
    # log_p is rounded, so all together are not quite 1
    wanted = torch.cat((log_p, tail[:, None].log().clamp_min(_LOWEST)), -1).log_softmax(-1)
    if beta == 0:
        return _kl(wanted, own)
    if beta == 1:
        return _kl(own, wanted)
    weights = torch.tensor([beta, 1 - beta], dtype=torch.float32, device=own.device).log()
    mixed = torch.logaddexp(wanted + weights[0], own + weights[1])
    return beta * _kl(wanted, mixed) + (1 - beta) * _kl(own, mixed)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Sum over all rows; a class of probability 0 adds nothing."""
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum()
