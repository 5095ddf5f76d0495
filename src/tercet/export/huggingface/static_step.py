"""The lean decoder's step on a static cache of transformers, whose tensors are as its own."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.device.captured import Captured, warm_up
from tercet.models import Decoder

Step = Callable[[Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Advance:
    """The step of ids behind the positions seen; then one more is seen.

    Attributes:
        step: ids [B], lengths int32 [B], keys and values of all layers to scores [B, V].
        ids: int64 [B].
        seen: int64 [] of each layer, how many positions are in the cache.
        keys, values: [B, G, L, D] of each layer.
    """

    step: Step
    ids: Tensor
    seen: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]

    def run_step(self) -> Tensor:
        lengths = (self.seen[0] + 1).to(torch.int32).repeat(len(self.ids))
        return self.step(self.ids, lengths, self.keys, self.values)

    def __call__(self) -> Tensor:
        scores = self.run_step()
        torch._foreach_add_(self.seen, 1)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return scores


class StaticStep:
    """The step, captured on a GPU, and the cache that it runs on: one at a time.

    A captured graph reads and writes the memory of the cache that it was captured with. Another of
    the same shape takes that memory over, once nobody refers to the first any more.

    Args:
        decoder: with the model's weights.
        cache: a StaticCache whose layers have their tensors, all for as many positions.
    """

    def __init__(self, decoder: Decoder, cache: Any) -> None:
        keys, values, seen = _tensors(cache)
        batch, _, capacity, _ = keys[0].shape
        self._cache = weakref.ref(cache)
        self._advance = _Advance(
            step=decoder.token_step(batch, capacity),
            ids=torch.zeros(batch, dtype=torch.int64, device=decoder.device),
            seen=seen,
            keys=keys,
            values=values,
        )
        self._captured: Captured[Tensor] | None = None
        if decoder.device.type == "cuda":
            warm_up(self._advance.run_step, decoder.device)
            self._captured = Captured(self._advance, decoder.device)

    def take(self, cache: Any) -> bool:
        """Whether the next step can run on this cache, which is made ready for it."""
        owner, own = self._cache(), self._advance
        keys, values, seen = _tensors(cache)
        mine, theirs = [*own.keys, *own.values, *own.seen], [*keys, *values, *seen]
        if owner is cache and all(one is other for one, other in zip(mine, theirs, strict=True)):
            return True
        if (owner is not None and owner is not cache) or len(mine) != len(theirs):
            return False
        if any(
            (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device)
            for one, other in zip(mine, theirs, strict=True)
        ):
            return False
        for one, other in zip(mine, theirs, strict=True):
            one.copy_(other)
        for layer, *tensors in zip(cache.layers, own.keys, own.values, own.seen, strict=True):
            layer.keys, layer.values, layer.cumulative_length = tensors
        self._cache = weakref.ref(cache)
        return True

    def run(self, ids: Tensor, cache: Any) -> Tensor:
        """Scores [B, V] of the token after ids [B]; the cache, taken, holds one position more."""
        self._advance.ids.copy_(ids)
        if self._captured is None:
            scores = self._advance()
        else:
            self._captured.replay()
            # the next replay overwrites its own
            scores = self._captured.result.clone()
        for layer in cache.layers:
            if layer.is_sliding:
                layer.cumulative_length_int += 1
        return scores


def _tensors(cache: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    layers = cache.layers
    return (
        [layer.keys for layer in layers],
        [layer.values for layer in layers],
        [layer.cumulative_length for layer in layers],
    )
