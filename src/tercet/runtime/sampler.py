"""Sampling: chooses the next token from the logits.

A token is drawn by one number in [0, 1): where the weights of the tokens that the filters keep are
laid end to end, it is the token that this share of the whole falls on. Weights are integers, so
that their sums are exact: a seed gives the same tokens in every batch and on every device, but
where the logits themselves differ in their last bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.models.decoder.gpu.token_graph import Choice, choose_most_probable
from tercet.runtime.settings import GenerationSettings

# of the most probable token; those of 131,072 tokens fit the 53 bits of a float64
_MOST_WEIGHT = 2**36


class Sampler:
    """Chooses tokens greedily or at random, as the settings say; equal seeds give equal tokens."""

    def __init__(self, settings: GenerationSettings) -> None:
        self.settings = settings
        self._random = torch.Generator()
        if settings.seed is None:
            self._random.seed()
        else:
            # torch takes no integer of numpy
            self._random.manual_seed(int(settings.seed))

    def pick(self, scores: Tensor, seen: Sequence[int]) -> int:
        """Return the id of the next token.

        Args:
            scores: logits [V].
            seen: ids of the prompt and of all tokens generated so far, for the repetition penalty.
        """
        settings = self.settings
        if settings.repetition_penalty != 1.0 and seen:
            scores = penalize(scores, seen_among(len(scores), seen), settings.repetition_penalty)
        if settings.temperature == 0.0:
            return int(scores.argmax())
        tokens = None
        if settings.top_k is not None and settings.top_k < len(scores):
            # the others weigh nothing: left out, they cost nothing either
            tokens = (~(scores < scores.topk(settings.top_k).values[-1])).nonzero()[:, 0]
            scores = scores[tokens]
        place = draw(scores[None], settings, self._shares(1)[0].to(scores.device))
        return int(place if tokens is None else tokens[place])

    def follow(self, count: int, seen: Sequence[int], scores: Tensor, length: int) -> Choice:
        """The `count` choices after those that were made, where scores are.

        Args:
            count: how many at most.
            seen: ids of the prompt and of all tokens generated so far.
            scores: logits [V], for their device and size alone.
            length: of the sequence, with the first token that is fed back.
        """
        settings, marks = self.settings, None
        if settings.temperature == 0.0 and settings.repetition_penalty == 1.0:
            return choose_most_probable
        shares = self._shares(count)
        if settings.repetition_penalty != 1.0:
            marks = seen_among(len(scores), seen)[None].to(scores.device)
        return Choices(settings, shares.to(scores.device), length, marks)

    def _shares(self, count: int) -> Tensor:
        """[count, 1], each as if it had been drawn alone."""
        return torch.rand(count, 1, generator=self._random, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Choices:
    """The next token of each sequence, chosen where the scores are: nothing waits for the host.

    Attributes:
        settings: how it is chosen.
        shares: float64 [N, B] in [0, 1), what the N tokens of each sequence are drawn by.
        length: of the sequences when the first is drawn.
        seen: bool [B, V], which tokens each has, where a repetition is penalized; or None.
    """

    settings: GenerationSettings
    shares: Tensor
    length: int
    seen: Tensor | None

    def __call__(self, scores: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """[B]: the tokens after ids [B], from scores [B, V] at lengths int32 [B]."""
        settings = self.settings
        if self.seen is not None:
            self.seen.scatter_(1, ids[:, None], True)
            scores = penalize(scores, self.seen, settings.repetition_penalty)
        if settings.temperature == 0.0:
            return scores.argmax(-1)
        at = (lengths.long() - self.length).clamp(0, len(self.shares) - 1)
        return draw(scores, settings, self.shares.gather(0, at[None])[0])


def draw(scores: Tensor, settings: GenerationSettings, shares: Tensor) -> Tensor:
    """[B]: the token of each row of scores [B, V] that its share [B] of the weights falls on."""
    ends = (weigh(scores, settings) * _MOST_WEIGHT).round().long().cumsum(-1)
    total = ends[:, -1:]
    found = (shares[:, None] * total).long().minimum(total - 1)
    # a row that is no numbers ends nowhere
    return torch.searchsorted(ends, found, right=True).clamp(max=ends.shape[1] - 1)[:, 0]


def weigh(scores: Tensor, settings: GenerationSettings) -> Tensor:
    """Weights float64 [B, V] of scores [B, V], the highest 1, of tokens that are filtered out 0.

    Filters apply in this order, each to the tokens that the one before kept: temperature, top-k,
    top-p, min-p. Tokens of equal scores are all kept, or none.
    """
    weights = _weights(scores, scores, settings)
    lowest = _lowest_kept(scores, weights, settings)
    if lowest is not None:
        weights = weights.where(weights >= lowest, 0.0)
    if settings.min_p is not None:
        weights = weights.where(weights >= settings.min_p, 0.0)
    return weights


def _lowest_kept(scores: Tensor, weights: Tensor, settings: GenerationSettings) -> Tensor | None:
    """[B, 1]: the lowest weight that top-k and top-p keep; None for all."""
    if settings.top_k is not None and settings.top_k < scores.shape[-1]:
        falling = weights.topk(settings.top_k).values
        if settings.top_p is None:
            return falling[:, -1:]
        total = falling.sum(-1, keepdim=True)
    elif settings.top_p is not None:
        total = weights.sum(-1, keepdim=True)
        if weights.device.type == "cpu" and len(weights) == 1:
            # all that are smaller than this weigh less together than what top-p leaves out
            bound = 0.999 * (1 - settings.top_p) * total / weights.shape[1]
            falling = weights[weights >= bound][None].sort(descending=True).values
        else:
            falling = _weights(scores.sort(descending=True).values, scores, settings)
    else:
        return None
    before = falling.cumsum(-1) - falling
    kept = (before < settings.top_p * total).sum(-1, keepdim=True)
    # of a row that is no numbers none are
    return pad(falling, (1, 0), value=1.0).gather(-1, kept)


def _weights(some: Tensor, scores: Tensor, settings: GenerationSettings) -> Tensor:
    """Of some of the scores [B, V], before filters."""
    highest = scores.amax(-1, keepdim=True).double()
    return ((some.double() - highest) / settings.temperature).exp()


def seen_among(count: int, seen: Sequence[int]) -> Tensor:
    """bool [count]: which tokens of a vocabulary were seen."""
    marks = torch.zeros(count, dtype=torch.bool)
    marks[torch.tensor(seen, dtype=torch.int64)] = True
    return marks


def penalize(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Lower the logits [..., V] of seen tokens: s / penalty where s > 0, else s * penalty.

    Args:
        scores: the logits.
        seen: bool [..., V], as `seen_among`.
        penalty: as in the settings.
    """
    lowered = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen.to(scores.device), lowered, scores)
