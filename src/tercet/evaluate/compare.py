"""Perplexity of models on a text, and how far students stray from their teacher.

Per scored token, with p the teacher's distribution and q the student's:

    perplexity = exp(mean -log q(next token))
    KL         = mean sum p log(p / q), in nats per token
    top-1      = share of positions where both rank the same token first

Windows do not overlap, and the first token of each is not scored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Logits = Callable[[Tensor], Tensor]

_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What a model makes of a text.

    Attributes:
        perplexity: over all scored tokens.
        kl_nats: mean KL(teacher || model) per token; None without a teacher.
        top1_agreement: share of positions with the teacher's first choice; None without a teacher.
        scored_tokens: how many tokens count.
    """

    perplexity: float
    kl_nats: float | None
    top1_agreement: float | None
    scored_tokens: int

    def metrics(self) -> dict[str, float]:
        """The measured values by name, absent ones left out."""
        found = {
            "perplexity": self.perplexity,
            "kl_nats": self.kl_nats,
            "top1_agreement": self.top1_agreement,
            "scored_tokens": self.scored_tokens,
        }
        return {name: float(value) for name, value in found.items() if value is not None}


@dataclass
class _Sums:
    loss: float = 0.0
    kl: float = 0.0
    agree: int = 0
    tokens: int = 0

    def quality(self, against_teacher: bool) -> Quality:
        mean = self.loss / self.tokens
        return Quality(
            perplexity=exp(mean) if mean < 700 else inf,
            kl_nats=self.kl / self.tokens if against_teacher else None,
            top1_agreement=self.agree / self.tokens if against_teacher else None,
            scored_tokens=self.tokens,
        )


@torch.inference_mode()
def compare(
    windows: Tensor,
    students: dict[str, Logits],
    teacher: Logits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Quality]:
    """The quality of each student; with a teacher, its own under the name "teacher" as well.

    Args:
        windows: token ids [windows, length], length at least 2.
        students: functions from ids [1, length] to logits [1, length, vocabulary], on the device
            that all models are on.
        teacher: the same, for the uncompressed model; its logits are computed once a window.
        progress: told (windows done, windows in all).
    """
    models = {**({"teacher": teacher} if teacher is not None else {}), **students}
    sums = {name: _Sums() for name in models}
    for done, window in enumerate(windows):
        ids = window[None]
        reference = teacher(ids)[0, :-1] if teacher is not None else None
        for name, model in models.items():
            own = reference if name == "teacher" and reference is not None else model(ids)[0, :-1]
            _add(sums[name], own, window[1:].to(own.device), reference)
        if progress is not None:
            progress(done + 1, len(windows))
    return {name: total.quality(teacher is not None) for name, total in sums.items()}


def _add(sums: _Sums, logits: Tensor, targets: Tensor, reference: Tensor | None) -> None:
    """Adds one window, a few rows at a time: no second [length, vocabulary] array exists."""
    for start in range(0, len(targets), _ROWS):
        rows = slice(start, start + _ROWS)
        own = logits[rows].float()
        sums.loss += float(cross_entropy(own, targets[rows], reduction="sum").double())
        if reference is not None:
            log_q = own.log_softmax(-1)
            log_p = reference[rows].float().log_softmax(-1)
            sums.kl += float((log_p.exp() * (log_p - log_q)).sum().double())
            sums.agree += int((own.argmax(-1) == reference[rows].argmax(-1)).sum())
    sums.tokens += len(targets)
