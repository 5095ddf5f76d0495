"""What the teacher writes, from openings given to it; and what its neighbours' teachers wrote."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from decoder import Decoder
from decoder_kernels import draw
from safetensors.torch import load_file, save_file
from torch import Tensor

from tercet.compress.qat.student import Student

END = 0  # of a document
FREE = -1
"""In openings: a token that the teacher chooses."""
COOLEST = 0.7
"""The lowest temperature of a text; the highest is 1, where its words have the teacher's own
probabilities, but a small model soon loses the thread."""
LENGTH = 256
"""Tokens of a text, at most."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Documents end to end.

    Attributes:
        ids: int32 [n].
        starts: int64 [m], places where a document, a paragraph or a question begins.
    """

    ids: Tensor
    starts: Tensor


@torch.no_grad()
def write(teacher: Student, openings: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Texts that begin as they are told to.

    Args:
        teacher: in eval mode.
        openings: int64 [B, P], P <= length, FREE where the teacher chooses.
        length: of a text.
        generator: on the teacher's device.

    Returns:
        int64 [B, length], each text drawn at a temperature of its own.
    """
    count = len(openings)
    decoder = Decoder(teacher, count, length)
    heat = torch.rand(count, generator=generator, device=openings.device)
    heat = COOLEST + (1 - COOLEST) * heat
    device = openings.device
    seed = int(torch.randint(2**30, (), generator=generator, device=device))
    ids = openings[:, 0]
    texts = [ids]
    for place in range(1, length):
        ids = draw(decoder.scores(ids, place - 1), heat, seed + place)
        if place < openings.shape[1]:
            given = openings[:, place]
            ids = torch.where(given == FREE, ids, given)
        texts.append(ids)
    return torch.stack(texts, 1)


class Openings:
    """Draws how texts begin: by hand, as other texts do, or with a token at random.

    Args:
        written: int32 [n, P], those of `data.py`, FREE behind.
        texts: others.
        vocabulary: tokens are drawn below it.
    """

    HAND, TEXT = 0.45, 0.4
    """Shares of the first two."""
    KEPT = 16
    """Tokens of another text; longer ones by hand are not cut."""

    def __init__(self, written: Tensor, texts: list[Text], vocabulary: int) -> None:
        self.written, self.texts, self.vocabulary = written, texts, vocabulary

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """int64 [count, P] for `write`."""
        device, width = self.written.device, self.written.shape[1]

        def below(limit: int, *shape: int) -> Tensor:
            return torch.randint(limit, shape, generator=generator, device=device)

        hand, text = int(self.HAND * count), int(self.TEXT * count)
        parts = [self.written[below(len(self.written), hand)].long()]
        for index, each in enumerate(self.texts):
            some = (text + index) // len(self.texts)
            drawn = each.starts[below(len(each.starts), some)]
            places = drawn.clamp(max=len(each.ids) - self.KEPT)
            rows = torch.full((some, width), FREE, device=device)
            rows[:, : self.KEPT] = each.ids[
                places[:, None] + torch.arange(self.KEPT, device=device)
            ]
            parts.append(rows)
        rest = torch.full((count - sum(map(len, parts)), width), FREE, device=device)
        rest[:, :1] = below(self.vocabulary, len(rest), 1)
        parts.append(rest)
        return torch.cat(parts)


def written(
    teacher: Student,
    openings: Openings,
    *,
    tokens: int,
    length: int,
    seconds: float,
    batch: int,
    seed: int,
) -> Tensor:
    """Texts, int32 [n, length], until there are as many tokens, or the time is over.

    Args:
        teacher: in eval mode.
        openings: of the texts.
        tokens: at least so many.
        length: of a text.
        seconds: in which another batch of texts would no longer be written.
        batch: texts at a time.
        seed: of openings and of what is drawn.
    """
    device = openings.written.device
    generator = torch.Generator(device).manual_seed(seed)
    texts: list[Tensor] = []
    start, spent = time.monotonic(), 0.0
    while len(texts) * batch * length < tokens and spent * (1 + 1 / max(1, len(texts))) <= seconds:
        drawn = openings.draw(batch, generator)
        texts.append(write(teacher, drawn, length, generator).int())
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent = time.monotonic() - start
    return torch.cat(texts)


def shared(own: Tensor, folder: Path, name: str, writers: int, patience_s: float) -> list[Tensor]:
    """What all writers wrote, as far as it is there in time; the own texts first.

    Args:
        own: int32 [n, T].
        folder: that the writers share.
        name: of this writer.
        writers: how many there are.
        patience_s: how long to wait for the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    save_file({"text": own.cpu()}, part)
    part.rename(folder / f"{name}.safetensors")
    until = time.monotonic() + patience_s
    while len(list(folder.glob("*.safetensors"))) < writers and time.monotonic() < until:
        time.sleep(0.2)
    others = sorted(path for path in folder.glob("*.safetensors") if path.stem != name)
    return [own, *(load_file(path)["text"].to(own.device) for path in others)]
