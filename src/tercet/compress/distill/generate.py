"""Text that the teacher itself writes, to be trained on: no data is needed.

As in LLM-QAT (Liu et al. 2023, arXiv:2305.17888) a text begins with a token drawn at random; the
next few are the likeliest, so that it finds its way; all others are drawn from the teacher's
distribution, each text at a temperature of its own between 0.7 and 1: at 1 words have the teacher's
own probabilities, but a small model soon loses the thread. A teacher that was tuned for
conversations writes half of them as conversations: what its chat template puts before a user's
words is given, and the teacher writes the question, too (Magpie, Xu et al. 2024, arXiv:2406.08464).
Where other text is at hand, most of the rest go on from a few of its tokens, and stay in its field.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.compress.distill.next_token import NextToken

_LIKELIEST = 4
_COOLEST = 0.7
_CONVERSATIONS = 0.5
# of all that are no conversations, where there are beginnings
_CONTINUED = 0.75
# in openings: a token that the teacher chooses
_FREE = -1


@torch.no_grad()
def generate(
    teacher: NextToken,
    tokens: int,
    *,
    length: int,
    batch: int = 16,
    seed: int = 0,
    opening: Sequence[int] = (),
    beginnings: Tensor | None = None,
) -> Iterator[Tensor]:
    """Texts, int64 [length] each, until there are `tokens` tokens of them.

    Args:
        teacher: what writes.
        tokens: how many, at least.
        length: of a text.
        batch: texts at a time.
        seed: equal seeds and batches give equal texts on one device.
        opening: ids that a conversation begins with, up to a user's first word; none: no text is
            one.
        beginnings: ids [n, P] of other text, of which texts that are no conversations go on from
            rows at random; None, n = 0 or P >= length: none does.
    """
    generator = torch.Generator(teacher.device).manual_seed(seed)
    done = 0
    while done < tokens:
        begun = _openings(teacher, batch, length, opening, beginnings, generator)
        yield from _write(teacher, begun, length, generator).cpu()
        done += batch * length


def _openings(
    teacher: NextToken,
    batch: int,
    length: int,
    opening: Sequence[int],
    beginnings: Tensor | None,
    generator: torch.Generator,
) -> Tensor:
    """How each text begins [batch, P], _FREE where the teacher chooses."""
    device = teacher.device

    def draw(below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=generator, device=device)

    conversations = int(_CONVERSATIONS * batch) if 0 < len(opening) < length else 0
    parts, left = list[Tensor](), batch - conversations
    if conversations:
        parts.append(torch.tensor(opening, device=device).expand(conversations, -1))
    if beginnings is not None and len(beginnings) and beginnings.shape[1] < length:
        continued = int(_CONTINUED * left)
        parts.append(beginnings.to(device)[draw(len(beginnings), continued)])
        left -= continued
    parts.append(draw(teacher.vocabulary, left)[:, None])
    width = max(part.shape[1] for part in parts)
    return torch.cat([pad(part, (0, width - part.shape[1]), value=_FREE) for part in parts])


def _write(teacher: NextToken, begun: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Texts [batch, length] that begin as they are told to."""
    batch, width = begun.shape
    alone = (begun == _FREE).any(1) | (width == 1)
    heat = torch.rand((batch, 1), generator=generator, dtype=torch.float32, device=teacher.device)
    heat = _COOLEST + (1 - _COOLEST) * heat
    teacher.begin(batch, length)
    ids, texts = begun[:, 0], [begun[:, 0]]
    for position in range(1, length):
        scores = teacher.scores(ids).float()
        ids = torch.multinomial((scores / heat).softmax(-1), 1, generator=generator)[:, 0]
        if position <= _LIKELIEST:
            ids = torch.where(alone, scores.argmax(-1), ids)
        if position < width:
            ids = torch.where(begun[:, position] == _FREE, ids, begun[:, position])
        texts.append(ids)
    return torch.stack(texts, 1)
