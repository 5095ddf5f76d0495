"""Texts to train on, and the windows of them that are read."""

from dataclasses import dataclass

import torch
from torch import Tensor
from writing import LENGTH, Text

PARTS = (0.2, 0.3, 0.5)
"""Of windows that are neither the teacher's nor questions: WikiText-2 train, other text, tales."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of a process's windows.

    Attributes:
        own: teachers' text.
        asked: questions with their answers, right and wrong.
    """

    own: float
    asked: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Texts:
    """All that there is to read.

    Attributes:
        given: those of PARTS.
        asked: questions; None where there are none.
        written: by teachers, [n, T] int32, each writer's own T.
    """

    given: list[Text]
    asked: Text | None
    written: list[Tensor]

    def sizes(self) -> list[int]:
        """Tokens of each, in the order of the attributes."""
        asked = [] if self.asked is None else [len(self.asked.ids)]
        given = [len(text.ids) for text in self.given]
        return [*given, *asked, *(text.numel() for text in self.written)]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A text, and its share of the windows, which begin where its documents do."""

    text: Text
    share: float


def pools_of(texts: Texts, shares: Shares, length: int) -> list[Pool]:
    """What windows of that length are read from."""
    # a window begins where a text does, as a question does, and is one text if it can be
    whole = [text for text in texts.written if text.shape[1] >= min(length, LENGTH)]
    written = whole or texts.written
    count = sum(map(len, written))
    own = shares.own if written else 0.0
    asked = shares.asked if texts.asked else 0.0
    parts = [(1 - own - asked) * part for part in PARTS]
    pools = [Pool(text=text, share=part) for text, part in zip(texts.given, parts, strict=True)]
    if texts.asked:
        pools.append(Pool(text=texts.asked, share=asked))
    return pools + [Pool(text=_text_of(rows), share=own * len(rows) / count) for rows in written]


def _text_of(rows: Tensor) -> Text:
    ids = rows.flatten()
    return Text(ids=ids, starts=torch.arange(0, len(ids), rows.shape[1], device=ids.device))


class Batches:
    """Windows of texts at random ones of their beginnings.

    Args:
        pools: to read from.
        seed: of the places.
    """

    def __init__(self, pools: list[Pool], seed: int = 0) -> None:
        self._texts = [pool.text.ids for pool in pools]
        self._starts = [pool.text.starts.cpu() for pool in pools]
        self._shares = torch.tensor([pool.share for pool in pools])
        self._generator = torch.Generator().manual_seed(seed)

    def fill(self, ids: Tensor) -> None:
        """Writes the next windows into ids [B, T]."""
        count, length = ids.shape
        which = torch.multinomial(self._shares, count, True, generator=self._generator).tolist()
        rows: list[Tensor] = []
        for index in which:
            text, starts = self._texts[index], self._starts[index]
            drawn = torch.randint(len(starts), (1,), generator=self._generator)
            first = min(int(starts[drawn]), len(text) - length)
            rows.append(text[first : first + length])
        ids.copy_(torch.stack(rows))
