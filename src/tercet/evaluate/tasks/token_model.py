"""TokenModel: what scoring and generation ask of a language model, in token ids.

Two models give it: the lean decoder on packed weights, and any causal model of transformers (the
teacher, and architectures that the decoder does not know).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tercet.evaluate.tasks.side_by_side import Ended, continue_side_by_side
from tercet.models import Decoder, KeyValueCache

# a call's own cost: on two busy cores 50 calls of 30 layers took 30 s longer than one with the same
# tokens, at 5 ms a token; a GPU, not measured yet, is idle below thousands
_CALL_TOKENS = {"cpu": 128, "cuda": 2048}
# a GPU does 4096 tokens of a small model in less time than the host takes to launch the kernels
_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}

# answers written at once, and what of the free memory their keys and values may take
_MOST_SEQUENCES, _SHARE_OF_FREE = 64, 0.5


class TokenModel(Protocol):
    """A language model.

    Attributes:
        positions: the longest sequence that it takes.
        call_tokens: how many tokens more a batch may have before another call is the cheaper way;
            None where `logits_after_prefix` is not there.
        batch_tokens: of a batch of `logits_at`, padding included.
    """

    positions: int
    call_tokens: int | None
    batch_tokens: int

    def set_prefix(self, ids: Sequence[int]) -> None:
        """What all rows of the next calls follow; what it shares with the one before is kept."""
        ...

    def logits_after_prefix(self, ids: Tensor) -> Tensor:
        """Logits [B, T, V] after each of ids [B, T], whose rows all follow the prefix."""
        ...

    def logits_at(self, ids: Tensor, where: Tensor) -> Tensor:
        """Logits [count, V] after the positions of ids [B, T] that bool `where` [B, T] names."""
        ...

    def greedy(
        self, prompts: Sequence[Sequence[int]], counts: Sequence[int], ended: Ended
    ) -> Iterator[tuple[int, list[int]]]:
        """What follows each prompt, the most probable token each time, as it is done.

        Args:
            prompts: ids, at least one each.
            counts: how many tokens at most; a prompt and its tokens fit the model's positions.
            ended: called with the number of a prompt and its tokens so far; whether they are all.

        Returns:
            (number of the prompt, its tokens).
        """
        ...


class DecoderModel:
    """A decoder with packed weights.

    It keeps the keys and values of the last context, so that questions behind the same examples
    need no second pass over them.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._cache = decoder.cache()
        self._prefix: list[int] = []
        self.positions = decoder.config.positions
        self.call_tokens: int | None = _CALL_TOKENS[decoder.device.type]
        self.batch_tokens = _BATCH_TOKENS[decoder.device.type]

    def set_prefix(self, ids: Sequence[int]) -> None:
        """As TokenModel's."""
        shared = shared_length(self._prefix, ids)
        # an answer may stand behind the prefix
        self._cache.truncate(shared)
        chunk = self._decoder.prompt_chunk
        for start in range(self._cache.length, len(ids), chunk):
            self._decoder.fill(torch.tensor([ids[start : start + chunk]]), self._cache)
        self._prefix = list(ids)

    def logits_after_prefix(self, ids: Tensor) -> Tensor:
        """As TokenModel's."""
        cache = self._cache.repeat(ids.shape[0], ids.shape[1])
        where = torch.ones_like(ids, dtype=torch.bool)
        return self._decoder.logits_at(ids, where, cache).view(*ids.shape, -1)

    def logits_at(self, ids: Tensor, where: Tensor) -> Tensor:
        """As TokenModel's."""
        return self._decoder.logits_at(ids, where)

    def greedy(
        self, prompts: Sequence[Sequence[int]], counts: Sequence[int], ended: Ended
    ) -> Iterator[tuple[int, list[int]]]:
        """As TokenModel's."""
        if not self._decoder.captured:
            return one_by_one(self._follow, prompts, counts, ended)
        return continue_side_by_side(
            self._decoder,
            prompts,
            counts,
            ended,
            sequences=min(self._sequences(prompts, counts), len(prompts)),
            read_prompt=self._read_prompt,
        )

    def _follow(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        cache, token = self._read_prompt(prompt[:-1]), prompt[-1]
        for _ in range(count):
            token = int(self._decoder.extend(torch.tensor([[token]]), cache)[0].argmax())
            yield token

    def _read_prompt(self, ids: Sequence[int]) -> KeyValueCache:
        self.set_prefix(ids)
        return self._cache

    def _sequences(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> int:
        """How many sequences of these lengths fit a share of what is free on the GPU."""
        decoder = self._decoder
        one = decoder.cache()
        one.reserve(max(len(p) + count for p, count in zip(prompts, counts, strict=True)))
        free, _ = torch.cuda.mem_get_info(decoder.device)
        return max(1, min(_MOST_SEQUENCES, int(_SHARE_OF_FREE * free) // one.size_bytes))


class TransformersModel:
    """A causal model of transformers, in evaluation mode, on one device."""

    call_tokens: int | None = None

    def __init__(self, model: Any) -> None:
        self._model = model
        self.positions: int = model.config.max_position_embeddings
        self.batch_tokens = _BATCH_TOKENS[model.device.type]

    def set_prefix(self, ids: Sequence[int]) -> None:
        """Nothing is kept between calls."""

    def logits_after_prefix(self, ids: Tensor) -> Tensor:
        """Not there: `call_tokens` is None."""
        raise NotImplementedError

    @torch.inference_mode()
    def logits_at(self, ids: Tensor, where: Tensor) -> Tensor:
        """As TokenModel's."""
        columns = where.any(0).nonzero()[:, 0]
        device = self._model.device
        logits = self._model(
            input_ids=ids.to(device), use_cache=False, logits_to_keep=columns.to(device)
        ).logits
        return logits[where[:, columns].to(device)]

    def greedy(
        self, prompts: Sequence[Sequence[int]], counts: Sequence[int], ended: Ended
    ) -> Iterator[tuple[int, list[int]]]:
        """As TokenModel's."""
        return one_by_one(self._follow, prompts, counts, ended)

    @torch.inference_mode()
    def _follow(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        ids, cache = torch.tensor([list(prompt)]), None
        for _ in range(count):
            out = self._model(
                input_ids=ids.to(self._model.device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, token = out.past_key_values, int(out.logits[0, -1].argmax())
            yield token
            ids = torch.tensor([[token]])


def one_by_one(
    follow: Callable[[Sequence[int], int], Iterator[int]],
    prompts: Sequence[Sequence[int]],
    counts: Sequence[int],
    ended: Ended,
) -> Iterator[tuple[int, list[int]]]:
    """As TokenModel's `greedy`, by a function of one prompt and its count of tokens."""
    for index, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        tokens: list[int] = []
        for token in follow(prompt, count):
            tokens.append(token)
            if ended(index, tokens):
                break
        yield index, tokens


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


Progress = Callable[[int, int], None]
"""A function called with (requests done, requests in all)."""
