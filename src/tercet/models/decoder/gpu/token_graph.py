"""TokenGraph: the step of one new position as a CUDA graph.

Lengths advance on the GPU, and the next token is chosen there, unless another is given: decoding
waits for nothing that the host does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.kernel.device.captured import Captured, warm_up
from tercet.models.decoder.kv_cache import KeyValueCache

Scales = tuple[list[Tensor], list[Tensor]]
Step = Callable[[Tensor, Tensor, list[Tensor], list[Tensor], Scales | None], Tensor]
Choice = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The next tokens [B] of scores [B, V], after ids [B] at lengths int32 [B], these included.

It waits for nothing, and gives the same when it is called with the same once more.
"""

# scores of which a block finds the best alone
_MOST_EACH = 512


def most_probable(scores: Tensor) -> Tensor:
    """The place [B] of the best of scores [B, V], by many blocks: argmax takes one a row."""
    batch, count = scores.shape
    each = min(count & -count, _MOST_EACH)
    best, places = scores.view(batch, -1, each).max(-1)
    run = best.argmax(-1, keepdim=True)
    return (places.gather(1, run) + run * each).squeeze(1)


def choose_most_probable(scores: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """The `Choice` of greedy decoding."""
    del ids, lengths
    return most_probable(scores)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Advance:
    """The step of ids at lengths, both as they are; then the chosen token and one more.

    Scores [B, V] of the step.
    """

    step: Step
    choose: Choice
    ids: Tensor
    lengths: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    scales: Scales | None

    def run_step(self) -> tuple[Tensor, Tensor]:
        scores = self.step(self.ids, self.lengths, self.keys, self.values, self.scales)
        return scores, self.choose(scores, self.ids, self.lengths)

    def __call__(self) -> Tensor:
        scores, chosen = self.run_step()
        self.ids.copy_(chosen)
        self.lengths.add_(1)
        return scores


class TokenGraph:
    """The step, captured for one cache at its present capacity.

    Args:
        step: ids [B], lengths int32 [B], keys and values of all layers and their scales, if they
            are codes, to scores [B, V]. It refers to nothing that refers to this object.
        cache: whose next position is the first that is run.
        choose: the token after each; by default the most probable one.
        ids: [B], the first that will be run. The runs before the capture are of them: a choice may
            remember what was there.
    """

    def __init__(
        self,
        step: Step,
        cache: KeyValueCache,
        choose: Choice = choose_most_probable,
        ids: Tensor | None = None,
    ) -> None:
        self._held, (keys, values) = cache.held, cache.all_positions()
        batch, device = cache.batch, self._held.device
        self._ids = torch.zeros(batch, dtype=torch.int64, device=device)
        if ids is not None:
            self._ids.copy_(ids)
        # the runs before the capture write where the first replay will
        self._lengths = torch.full((batch,), cache.length + 1, dtype=torch.int32, device=device)
        self._next = cache.length + 1
        self._choose = choose
        advance = _Advance(
            step=step,
            choose=choose,
            ids=self._ids,
            lengths=self._lengths,
            keys=keys,
            values=values,
            scales=cache.all_scales(),
        )
        warm_up(advance.run_step, device)
        self._graph = Captured(advance, device)

    def fits(self, cache: KeyValueCache, choose: Choice) -> bool:
        """Whether it was captured for this cache, which has not grown since, and this choice."""
        return cache.held is self._held and choose == self._choose

    @property
    def top(self) -> Tensor:
        """[B], the token chosen after the last run; overwritten by the next."""
        return self._ids

    def move(self, sequence: int, token: int, length: int) -> None:
        """Has `advance` go on with this token at position length - 1 of one sequence."""
        self._ids[sequence] = token
        self._lengths[sequence] = length
        self._next = -1

    def advance(self) -> Tensor:
        """`top` after a run of all sequences where they are, each of its own length."""
        self._graph.replay()
        return self._ids

    def run(self, ids: Tensor | None, length: int) -> Tensor:
        """Scores [B, V] of the token after ids [B], each sequence's position length - 1.

        Without ids, after `top`. The scores' memory is that of the next run's.
        """
        if length != self._next:
            self._lengths.fill_(length)
        if ids is not None:
            self._ids.copy_(ids, non_blocking=True)
        self._graph.replay()
        self._next = length + 1
        return self._graph.result
