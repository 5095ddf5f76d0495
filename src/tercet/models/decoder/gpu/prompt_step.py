"""Many new positions of each sequence through all layers, by fused ops: what a GPU runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from tercet.models.decoder.gpu.fused_layer import run_layer
from tercet.models.decoder.gpu.layer_cache import LayerCache, layer_caches
from tercet.models.decoder.kv_cache import KeyValueCache, Positions
from tercet.models.decoder.layer import Layer
from tercet.ops.attention import attention


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptStep:
    """What all layers share in one pass over new positions.

    Attributes:
        layers: as the decoder has them.
        cos, sin: float32 [L, R] of each position of the cache, for each kind of rotation.
        blocks: int32 [B, 1], as `append_kv_` takes it: a block of positions a sequence.
        lengths: int32 [B], positions of each sequence, the new ones included.
    """

    layers: Sequence[Layer]
    cos: Sequence[Tensor]
    sin: Sequence[Tensor]
    blocks: Tensor
    lengths: Tensor

    def __call__(self, hidden: Tensor, cache: KeyValueCache) -> Tensor:
        """What leaves the last layer [B T, hidden].

        Args:
            hidden: of the new positions [B T, hidden].
            cache: whose last positions they are; they are written.
        """
        positions = cache.last_positions(hidden.shape[0] // cache.batch)
        caches = layer_caches(*cache.all_positions(), cache.all_scales(), cache.key_offsets)
        for layer, seen, held in zip(self.layers, positions, caches, strict=True):
            hidden = run_layer(layer, hidden, partial(self._attend, layer, seen, held))
        return hidden

    def _attend(
        self,
        layer: Layer,
        seen: Positions,
        held: LayerCache,
        qkv: Tensor,
        *,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
    ) -> Tensor:
        q = held.append(
            qkv.view(len(self.lengths), -1, qkv.shape[1]),
            (self.cos[layer.rope], self.sin[layer.rope]),
            self.blocks,
            self.lengths,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=layer.config.norm_epsilon,
        )
        found = attention(
            q,
            *seen.read(qkv.dtype),
            scale=layer.config.attention_factor,
            window=layer.window or 0,
            soft_cap=layer.config.score_cap or 0.0,
        )
        return found.reshape(qkv.shape[0], -1)
