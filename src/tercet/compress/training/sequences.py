"""Sequences: tokens packed into full sequences, in a seeded order that any step can be asked for.

Documents lie end to end and are cut every `length` tokens, so no token is padding. Each epoch goes
through all sequences in an order of its own. The order is a function of the seed and the number of
a sequence alone: a run resumes at a token without having kept anything but that number.
"""

from functools import lru_cache

import torch
from torch import Tensor

from tercet.compress.training.token_file import TokenFile
from tercet.errors import PlanError


class Sequences:
    """Sequence number i of a run, for any i.

    Args:
        tokens: the tokens.
        length: of a sequence.
        seed: of the order.

    Raises:
        PlanError: not one full sequence.
    """

    def __init__(self, tokens: TokenFile, length: int, seed: int) -> None:
        self.tokens, self.length, self.seed = tokens, length, seed
        self.count = len(tokens) // length
        if not self.count:
            raise PlanError(
                f"{tokens.note.source}: {len(tokens)} tokens, less than one sequence of {length}: "
                f"give more data or a smaller length"
            )
        self._order = lru_cache(maxsize=2)(self._epoch)

    def _epoch(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed((self.seed << 20) + epoch)
        return torch.randperm(self.count, generator=generator)

    def indices(self, first: int, count: int) -> list[int]:
        """Which of the data's `count` sequences those numbered first, first + 1, ... are."""
        pairs = (divmod(number, self.count) for number in range(first, first + count))
        return [int(self._order(epoch)[index]) for epoch, index in pairs]

    def read(self, indices: list[int]) -> Tensor:
        """Token ids [len(indices), length] of those of the data's sequences."""
        return torch.stack([self.tokens.read(p * self.length, self.length) for p in indices])
