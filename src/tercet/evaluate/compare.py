"""Perplexity of models on a text, and how far students stray from their teacher.

Per scored token, with p the teacher's distribution and q the student's:

    perplexity = exp(mean -log q(next token))
    KL         = mean sum p log(p / q), in nats per token
    top-1      = share of positions where both rank the same token first

Windows do not overlap, and the first token of each is not scored. Intervals are of the text: what
other windows like these would have given, by the percentiles of windows drawn with replacement.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tercet.errors import CheckpointError
from tercet.evaluate.intervals import bootstrap_bounds

Logits = Callable[[Tensor], Tensor]

_ROWS = 128
_DRAWS = 4000
_CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What a model makes of a text.

    Attributes:
        perplexity: over all scored tokens.
        kl_nats: mean KL(teacher || model) per token; None without a teacher.
        top1_agreement: share of positions with the teacher's first choice; None without a teacher.
        scored_tokens: how many tokens count.
        intervals: 95 % intervals of these values by name; empty with fewer than two windows.
    """

    perplexity: float
    kl_nats: float | None
    top1_agreement: float | None
    scored_tokens: int
    intervals: dict[str, Interval] = field(default_factory=dict[str, Interval])

    def metrics(self) -> dict[str, float]:
        """The measured values by name, absent ones left out; NAME_low and NAME_high bound NAME."""
        found = {
            "perplexity": self.perplexity,
            "kl_nats": self.kl_nats,
            "top1_agreement": self.top1_agreement,
            "scored_tokens": self.scored_tokens,
        }
        bounds = {
            f"{name}_{side}": bound
            for name, interval in self.intervals.items()
            for side, bound in zip(("low", "high"), interval, strict=True)
        }
        return {n: float(value) for n, value in found.items() if value is not None} | bounds


@dataclass
class _Window:
    """Sums over the scored tokens of one window."""

    loss: float = 0.0
    kl: float = 0.0
    agree: int = 0


def _quality(windows: list[_Window], scored: int, against_teacher: bool) -> Quality:
    """Args: windows, each of `scored` tokens."""
    loss, kl, agree = (
        np.array([getattr(window, name) for window in windows], dtype=np.float64) / scored
        for name in ("loss", "kl", "agree")
    )
    intervals: dict[str, Interval] = {}
    if len(windows) > 1:
        low, high = _interval(loss)
        intervals["perplexity"] = _perplexity(low), _perplexity(high)
        if against_teacher:
            intervals |= {"kl_nats": _interval(kl), "top1_agreement": _interval(agree)}
    return Quality(
        perplexity=_perplexity(float(loss.mean())),
        kl_nats=float(kl.mean()) if against_teacher else None,
        top1_agreement=float(agree.mean()) if against_teacher else None,
        scored_tokens=scored * len(windows),
        intervals=intervals,
    )


def _perplexity(loss: float) -> float:
    return exp(loss) if loss < 700 else inf


def _interval(values: np.ndarray) -> Interval:
    """Of the mean over windows; its bounds are wrong on one side each in 2.5 % of cases."""
    return bootstrap_bounds(values.tolist(), (1 + _CONFIDENCE) / 2, rounds=_DRAWS)


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

    Raises:
        CheckpointError: a student and the teacher have vocabularies of different sizes.
    """
    models = {**({"teacher": teacher} if teacher is not None else {}), **students}
    sums: dict[str, list[_Window]] = {name: [] for name in models}
    for done, window in enumerate(windows):
        ids = window[None]
        reference = teacher(ids)[0, :-1] if teacher is not None else None
        for name, model in models.items():
            own = reference if name == "teacher" and reference is not None else model(ids)[0, :-1]
            if reference is not None and own.shape != reference.shape:
                raise CheckpointError(
                    f"{name}: {own.shape[-1]} tokens, and the teacher has {reference.shape[-1]}: "
                    f"their distributions cannot be compared: give the model that it was made from"
                )
            sums[name].append(_sum(own, window[1:].to(own.device), reference))
        if progress is not None:
            progress(done + 1, len(windows))
    scored = windows.shape[1] - 1
    return {name: _quality(found, scored, teacher is not None) for name, found in sums.items()}


def _sum(logits: Tensor, targets: Tensor, reference: Tensor | None) -> _Window:
    """Of one window, a few rows at a time: no second [length, vocabulary] array exists."""
    sums = _Window()
    for start in range(0, len(targets), _ROWS):
        rows = slice(start, start + _ROWS)
        own = logits[rows].float()
        sums.loss += float(cross_entropy(own, targets[rows], reduction="sum").double())
        if reference is not None:
            log_q = own.log_softmax(-1)
            log_p = reference[rows].float().log_softmax(-1)
            sums.kl += float((log_p.exp() * (log_p - log_q)).sum().double())
            sums.agree += int((own.argmax(-1) == reference[rows].argmax(-1)).sum())
    return sums
