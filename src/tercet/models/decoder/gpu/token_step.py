"""One new position of each sequence through the whole decoder, by fused ops: what a GPU runs.

Rotation and the writing of keys and values are one launch, attention another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from tercet.models.decoder.config import DecoderConfig
from tercet.models.decoder.gpu.fused_layer import multiply_norm, run_layer
from tercet.models.decoder.gpu.layer_cache import LayerCache, layer_caches
from tercet.models.decoder.layer import Layer
from tercet.models.decoder.linear import Linear
from tercet.models.decoder.norm import Norm
from tercet.ops.paged_attention import paged_attention


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStep:
    """The decoder's weights, and the angles of the positions that it is run at.

    Attributes:
        config: its sizes.
        embed: ids [B] to rows [B, hidden].
        layers, norm, head: as the decoder has them.
        cos, sin: float32 [L, D/2] of each position, for each kind of rotation.
        blocks: int32 [B, T], as `paged_attention` takes it.
        key_offsets: of each layer of the cache, as it has them.
    """

    config: DecoderConfig
    embed: Callable[[Tensor], Tensor]
    layers: Sequence[Layer]
    norm: Norm
    head: Linear
    cos: Sequence[Tensor]
    sin: Sequence[Tensor]
    blocks: Tensor
    key_offsets: Sequence[Tensor] | None = None

    def __call__(
        self,
        ids: Tensor,
        lengths: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        scales: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> Tensor:
        """Scores [B, V] of the token after ids.

        Args:
            ids: [B], the new token of each sequence.
            lengths: int32 [B], positions of each sequence, the new one included.
            keys, values: [P, G, S, D] of each layer; the new position is written.
            scales: float32 [P, G, S] of each layer's keys and of its values, if these are codes.
        """
        hidden = self.embed(ids)
        caches = layer_caches(keys, values, scales, self.key_offsets)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = run_layer(layer, hidden, partial(self._attend, layer, lengths, cache))
        return self.config.logits(multiply_norm(self.head, hidden, self.norm))

    def _attend(
        self,
        layer: Layer,
        lengths: Tensor,
        cache: LayerCache,
        qkv: Tensor,
        *,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
    ) -> Tensor:
        q = cache.append(
            qkv.unsqueeze(1),
            (self.cos[layer.rope], self.sin[layer.rope]),
            self.blocks,
            lengths,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=self.config.norm_epsilon,
        )
        mixed = paged_attention(
            q,
            cache.keys,
            cache.values,
            self.blocks,
            lengths,
            key_scales=cache.key_scales,
            value_scales=cache.value_scales,
            scale=self.config.attention_factor,
            window=layer.window or 0,
            soft_cap=self.config.score_cap or 0.0,
        )
        return mixed.flatten(1)
