"""LayerCache: keys and values of one layer, as the step's ops read and write them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tercet.ops.append_kv import append_kv_


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCache:
    """Keys and values in blocks of positions, with their scales where they are codes.

    Attributes:
        keys, values: [P, G, S, D].
        key_scales, value_scales: float32 [P, G, S], of 4 bits bfloat16 [P, G, S, 2 C]; None where
            there are none.
        key_offset: float32 [G, D], taken off keys in 4 bits; None for none.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None
    key_offset: Tensor | None

    def append(
        self,
        qkv: Tensor,
        angles: tuple[Tensor, Tensor],
        blocks: Tensor,
        lengths: Tensor,
        *,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Queries [B, Q, H, D] of new positions, whose keys and values are written.

        Args:
            qkv: [B, Q, (H + 2 G) D].
            angles: cos and sin, [L, R] both.
            blocks, lengths, query_norm, key_norm, eps: as `append_kv_` takes them.
        """
        return append_kv_(
            qkv,
            *angles,
            self.keys,
            self.values,
            blocks,
            lengths,
            key_scales=self.key_scales,
            value_scales=self.value_scales,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=eps,
            key_offset=self.key_offset,
        )


def layer_caches(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scales: tuple[Sequence[Tensor], Sequence[Tensor]] | None,
    key_offsets: Sequence[Tensor] | None,
) -> list[LayerCache]:
    """Of each layer, from keys, values, scales of both, and offsets of keys, if any."""
    of_keys, of_values = scales or (none := [None] * len(keys), none)
    offsets = key_offsets or [None] * len(keys)
    return [
        LayerCache(keys=k, values=v, key_scales=of_k, value_scales=of_v, key_offset=offset)
        for k, v, of_k, of_v, offset in zip(keys, values, of_keys, of_values, offsets, strict=True)
    ]
