"""Sampling: chooses the next token from the logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.runtime.settings import GenerationSettings


class Sampler:
    """Chooses tokens greedily or at random, as the settings say; equal seeds give equal tokens."""

    def __init__(self, settings: GenerationSettings) -> None:
        self.settings = settings
        self._random = torch.Generator()
        if settings.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(settings.seed)

    @property
    def greedy(self) -> bool:
        """Whether it picks the most probable token, whatever came before."""
        return self.settings.temperature == 0.0 and self.settings.repetition_penalty == 1.0

    def pick(self, scores: Tensor, seen: Sequence[int]) -> int:
        """Return the id of the next token.

        Args:
            scores: logits [V].
            seen: ids of the prompt and of all tokens generated so far, for the repetition penalty.
        """
        if self.settings.repetition_penalty != 1.0 and seen:
            scores = penalize(scores, seen, self.settings.repetition_penalty)
        if self.settings.temperature == 0.0:
            return int(scores.argmax())
        probabilities, tokens = self.candidates(scores)
        return int(tokens[torch.multinomial(probabilities.cpu(), 1, generator=self._random)])

    def candidates(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens [C] to sample from and their probabilities [C], in falling order.

        Filters apply in this order, each to the tokens that the one before kept: temperature,
        top-k, top-p, min-p.
        """
        settings = self.settings
        ordered, tokens = scores.float().topk(min(settings.top_k or len(scores), len(scores)))
        probabilities = (ordered / settings.temperature).softmax(-1)
        if settings.top_p is not None:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities.where(before < settings.top_p, 0.0)
        if settings.min_p is not None:
            floor = settings.min_p * probabilities[0]
            probabilities = probabilities.where(probabilities >= floor, 0.0)
        kept = probabilities > 0
        return probabilities[kept] / probabilities.sum(), tokens[kept]


def penalize(scores: Tensor, seen: Sequence[int], penalty: float) -> Tensor:
    """Lower the logits [V] of seen tokens: s / penalty where s > 0, else s * penalty."""
    tokens = torch.tensor(sorted(set(seen)), device=scores.device)
    found = scores[tokens]
    return scores.index_copy(0, tokens, torch.where(found > 0, found / penalty, found * penalty))
