"""Text that the teacher itself writes, to be distilled on: no data is needed.

As in LLM-QAT (Liu et al. 2023, arXiv:2305.17888): a text begins with a token drawn at random; the
next few are the likeliest, so that it finds its way; all others are drawn from the teacher's own
distribution.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from tercet.compress.qat.student import Student

_LIKELIEST = 4


@torch.no_grad()
def generate(
    teacher: Student, tokens: int, *, length: int, batch: int = 16, seed: int = 0
) -> Iterator[Tensor]:
    """Texts, int64 [length] each, until there are `tokens` tokens of them.

    Args:
        teacher: in eval mode.
        tokens: how many, at least.
        length: of a text.
        batch: texts at a time.
        seed: equal seeds give equal texts on one device.
    """
    generator = torch.Generator(teacher.device).manual_seed(seed)
    model, vocabulary = cast(Any, teacher.model), int(teacher.config.vocab_size)
    done = 0
    while done < tokens:
        ids = torch.randint(vocabulary, (batch, 1), generator=generator, device=teacher.device)
        texts, cache = [ids], None
        for position in range(1, length):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[:, -1].float()
            if position <= _LIKELIEST:
                ids = logits.argmax(-1, keepdim=True)
            else:
                ids = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            texts.append(ids)
        yield from torch.cat(texts, 1).cpu()
        done += batch * length
