"""Greedy continuations of many prompts at once: one captured step for sequences of all lengths.

A sequence that has ended makes room for the next prompt at once (Yu et al. 2022, Orca), so that a
long answer keeps no other waiting.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from tercet.models import Decoder, KeyValueCache
from tercet.models.decoder.gpu.token_graph import TokenGraph

Ended = Callable[[int, Sequence[int]], bool]
"""(number of the prompt, its tokens so far) to whether they are all."""


def continue_side_by_side(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    counts: Sequence[int],
    ended: Ended,
    *,
    sequences: int,
    read_prompt: Callable[[Sequence[int]], KeyValueCache],
) -> Iterator[tuple[int, list[int]]]:
    """The most probable tokens after each prompt, as they are done: (number of the prompt, tokens).

    Args:
        decoder: on a GPU.
        prompts: token ids, at least one each.
        counts: how many tokens each may have.
        ended: asked after each token.
        sequences: how many prompts are continued at once.
        read_prompt: gives a cache of one sequence that holds these ids; read before it is called
            again.
    """
    todo = deque(range(len(prompts)))
    positions = max(len(prompt) + count for prompt, count in zip(prompts, counts, strict=True))
    cache = decoder.cache(sequences)
    cache.reserve(positions)
    graph = TokenGraph(decoder.token_step(sequences, cache.capacity), cache)
    reader = _Reader(sequences, decoder.device)
    found: dict[int, list[int]] = {}
    owners: list[int | None] = [None] * sequences
    under_way: deque[tuple[list[int | None], Callable[[], list[int]]]] = deque()
    while todo or under_way or found:
        for sequence, owner in enumerate(owners):
            if owner is None and todo:
                index = owners[sequence] = todo.popleft()
                *before, last = prompts[index]
                cache.put(sequence, read_prompt(before))
                graph.move(sequence, last, len(prompts[index]))
                found[index] = []
        if found:
            under_way.append((list(owners), reader.read(graph.advance())))
        # one step is always under way while the one before is looked at
        if found and len(under_way) == 1:
            continue
        then, tokens = under_way.popleft()
        for sequence, (index, token) in enumerate(zip(then, tokens(), strict=True)):
            if index is None or owners[sequence] != index:
                continue
            found[index].append(token)
            if len(found[index]) >= counts[index] or ended(index, found[index]):
                owners[sequence] = None
                # nothing follows here, perhaps: a short sequence costs least
                graph.move(sequence, 0, 1)
                yield index, found.pop(index)


class _Reader:
    """Brings tokens to the host while the GPU goes on; of two reads in turn.

    Args:
        count: of tokens.
        device: that they lie on.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._device = device
        pinned = device.type == "cuda"
        self._held = [torch.empty(count, dtype=torch.int64, pin_memory=pinned) for _ in range(2)]
        self._turn = 0

    def read(self, tokens: Tensor) -> Callable[[], list[int]]:
        """A function that waits for them, to be called before the read after the next."""
        held = self._held[self._turn]
        self._turn = 1 - self._turn
        held.copy_(tokens, non_blocking=True)
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))

        def wait() -> list[int]:
            if event is not None:
                event.synchronize()
            return cast("list[int]", held.tolist())

        return wait
