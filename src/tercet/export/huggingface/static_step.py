"""The lean decoder's step on a static cache of transformers, whose tensors are as its own."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.device.captured import Captured, warm_up
from tercet.models import Decoder

# positions that attention on Hopper reads at once
_TILE = 16

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

    A captured graph reads and writes the memory that it was captured with. A cache is copied there
    once, and its layers are given views of it; the next cache of that shape takes its place, once
    nobody refers to the one before any more.

    Args:
        decoder: with the model's weights.
        cache: a StaticCache whose layers have their tensors, all for as many positions.
    """

    def __init__(self, decoder: Decoder, cache: Any) -> None:
        first = cache.layers[0].keys
        batch, heads, positions, width = first.shape
        # transformers makes room for one position less than the text will have
        capacity = -(-positions // _TILE) * _TILE
        held = first.new_zeros(2 * len(cache.layers), batch, heads, capacity, width)
        self._views = list(held[..., :positions, :].unbind(0))
        if held.device.type == "cuda":
            for view in self._views:
                # torch may compile what comes later, as it does for the tensors of a cache
                torch._dynamo.mark_static_address(view)  # pyright: ignore[reportPrivateUsage]
        self._cache: weakref.ref[Any] | None = None
        self._advance = _Advance(
            step=decoder.token_step(batch, capacity),
            ids=torch.zeros(batch, dtype=torch.int64, device=decoder.device),
            seen=[layer.cumulative_length.clone() for layer in cache.layers],
            keys=list(held[0::2].unbind(0)),
            values=list(held[1::2].unbind(0)),
        )
        self._captured: Captured[Tensor] | None = None
        if decoder.device.type == "cuda":
            warm_up(self._advance.run_step, decoder.device)
            self._captured = Captured(self._advance, decoder.device)
        taken = self.take(cache)
        assert taken

    def take(self, cache: Any) -> bool:
        """Whether the next step can run on this cache, which is made ready for it."""
        owner = None if self._cache is None else self._cache()
        if owner is not None and owner is not cache:
            return False
        mine = [*self._views, *self._advance.seen]
        theirs = _tensors(cache)
        if all(one is other for one, other in zip(mine, theirs, strict=True)):
            return True
        if any(
            (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device)
            for one, other in zip(mine, theirs, strict=True)
        ):
            return False
        for one, other in zip(mine, theirs, strict=True):
            one.copy_(other)
        views, seen = self._views, self._advance.seen
        for layer, keys, values, count in zip(
            cache.layers, views[0::2], views[1::2], seen, strict=True
        ):
            layer.keys, layer.values, layer.cumulative_length = keys, values, count
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


def _tensors(cache: Any) -> list[Tensor]:
    """Keys and values, layer by layer, then how many positions each layer holds."""
    held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return held + [layer.cumulative_length for layer in cache.layers]
