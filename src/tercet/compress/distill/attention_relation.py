"""Attention-relation loss: which positions resemble which, by queries, by keys and by values.

MiniLMv2 (Wang et al. 2020, arXiv:2012.15828), made causal; BitNet Distillation (arXiv:2510.13998)
uses it at one layer for ternary students. Widths may differ: relations are over positions.
"""

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

from tercet.errors import PlanError

PARTS = ("q_proj", "k_proj", "v_proj")


def attention_relation_loss(
    student: Mapping[str, Tensor], teacher: Mapping[str, Tensor], heads: int
) -> Tensor:
    """Mean over PARTS, heads and positions of KL(R_teacher || R_student).

    R = softmax(X X^T / sqrt(d)) over earlier positions, X [T, d] a head's part of the projection.

    Args:
        student, teacher: by part, [B, T, heads * d] before any rotation; d may differ.
        heads: relation heads, which divide every width.

    Raises:
        PlanError: heads does not divide a width.
    """
    losses: list[Tensor] = []
    for part in PARTS:
        log_q = _log_relations(student[part], heads, part)
        log_p = _log_relations(teacher[part].detach(), heads, part)
        # both are -inf above the diagonal
        terms = log_p.exp() * (log_p - log_q).tril()
        losses.append(terms.sum(-1).mean())
    return torch.stack(losses).mean()


def _log_relations(x: Tensor, heads: int, part: str) -> Tensor:
    """[B, heads, T, T] float32."""
    batch, length, width = x.shape
    if width % heads:
        raise PlanError(
            f"{part} is {width} wide: relation_heads {heads} must divide the width of queries, "
            f"keys and values of both models"
        )
    each = x.float().view(batch, length, heads, width // heads).transpose(1, 2)
    scores = each @ each.transpose(2, 3) / sqrt(width // heads)
    later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    # a large number, not inf: inf - inf above the diagonal would be NaN, in the gradient, too
    return scores.masked_fill(later, -1e30).log_softmax(-1)
