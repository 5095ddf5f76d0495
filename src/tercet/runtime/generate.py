"""Token-by-token generation."""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.models import Decoder, KeyValueCache
from tercet.runtime.sampler import Sampler
from tercet.runtime.settings import GenerationSettings


def stream(
    model: Decoder,
    prompt: Sequence[int],
    settings: GenerationSettings,
    stop: frozenset[int] = frozenset(),
) -> Iterator[int]:
    """Generate token ids after the prompt, yielding each as soon as it is known.

    Generation ends after `max_new_tokens`, before a token of `stop`, or at the model's last
    position.

    Raises:
        UnsupportedError: the prompt is empty, too long for the model, or has an id outside of the
            vocabulary.
    """
    ids = _check(model, prompt)
    room = model.config.positions - len(ids)
    sampler, cache = Sampler(settings), model.cache()
    cache.reserve(len(ids) + min(settings.max_new_tokens, room))
    scores = torch.empty(0)
    for start in range(0, len(ids), model.prompt_chunk):
        scores = model.extend(torch.tensor([ids[start : start + model.prompt_chunk]]), cache)
    count = min(settings.max_new_tokens, room)
    for token in _pick_tokens(model, sampler, cache, scores, ids, count):
        if token in stop and not settings.ignore_stop:
            return
        ids.append(token)
        yield token


def _pick_tokens(
    model: Decoder,
    sampler: Sampler,
    cache: KeyValueCache,
    scores: Tensor,
    ids: Sequence[int],
    count: int,
) -> Iterator[int]:
    """The tokens after `scores`; whoever reads them appends each to `ids` before the next."""
    token = model.share_choice(sampler.pick(scores[0], ids))
    yield token
    if model.captured:
        choose = sampler.follow(count - 1, ids, scores[0], cache.length + 1)
        yield from chain.from_iterable(model.follow([token], cache, count - 1, choose))
        return
    for _ in range(count - 1):
        scores = model.extend(torch.tensor([[token]]), cache)
        token = model.share_choice(sampler.pick(scores[0], ids))
        yield token


def _check(model: Decoder, prompt: Sequence[int]) -> list[int]:
    ids, config = list(prompt), model.config
    if not ids:
        raise UnsupportedError("the prompt is empty: give at least one token")
    if len(ids) >= config.positions:
        raise UnsupportedError(
            f"a prompt of {len(ids)} tokens leaves no room: the model has {config.positions} "
            f"positions"
        )
    wrong = [token for token in ids if not 0 <= token < config.vocabulary]
    if wrong:
        raise UnsupportedError(
            f"token id {wrong[0]}: the model has ids from 0 to {config.vocabulary - 1}"
        )
    return ids
