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

    def place(self, number: int) -> int:
        """Which of the `count` sequences number `number` of the run is."""
        epoch, index = divmod(number, self.count)
        return int(self._order(epoch)[index])

    def batch(self, first: int, count: int) -> Tensor:
        """Token ids [count, length] of sequences first, first + 1, ... of the run."""
        places = [self.place(number) for number in range(first, first + count)]
        return torch.stack([self.tokens.read(p * self.length, self.length) for p in places])
