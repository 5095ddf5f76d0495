"""Texts to train on, and the windows of them that are read."""

from dataclasses import dataclass

import torch
from torch import Tensor
from writing import LENGTH

PARTS = (0.15, 0.4, 0.45)
"""Of windows that are not the teacher's: WikiText-2 train, other text, tales."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Texts end to end.

    Attributes:
        text: int32 [n].
        share: of windows that come from here.
        every: windows begin at multiples of it: 1 for anywhere, or the length of a text.
    """

    text: Tensor
    share: float
    every: int = 1


def pools_of(texts: list[Tensor], own: float) -> list[Pool]:
    """Those of PARTS, and what the teachers wrote, with its share of the windows."""
    given, written = texts[: len(PARTS)], texts[len(PARTS) :]
    rest = 1 - own if written else 1.0
    pools = [Pool(text=text, share=rest * part) for text, part in zip(given, PARTS, strict=True)]
    # a window begins where a text does, as a question does
    return pools + [Pool(text=text, share=own, every=LENGTH) for text in written]


class Batches:
    """Windows of texts at random places.

    Args:
        pools: to read from.
        seed: of the places.
    """

    def __init__(self, pools: list[Pool], seed: int = 0) -> None:
        self._pools = pools
        self._shares = torch.tensor([pool.share for pool in pools])
        self._generator = torch.Generator().manual_seed(seed)

    def fill(self, ids: Tensor) -> None:
        """Writes the next windows into ids [B, T]."""
        count, length = ids.shape
        which = torch.multinomial(self._shares, count, True, generator=self._generator).tolist()
        rows: list[Tensor] = []
        for index in which:
            pool = self._pools[index]
            limit = (len(pool.text) - length) // pool.every + 1
            first = pool.every * int(torch.randint(limit, (1,), generator=self._generator))
            rows.append(pool.text[first : first + length])
        ids.copy_(torch.stack(rows))
