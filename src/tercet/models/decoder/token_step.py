"""One new position of each sequence through the whole decoder, by fused ops: what a GPU runs.

Between two products of a layer stands one launch where an op fuses what lies there: the norm with
the quantization of its result, rotation with the writing of keys and values, the gate with its
quantization. Residuals are added in the products' epilogues.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.models.decoder.config import ACTIVATIONS, DecoderConfig
from tercet.models.decoder.layer import Layer
from tercet.models.decoder.linear import Linear, packed_behind
from tercet.models.decoder.mlp import Routed
from tercet.models.decoder.norm import Norm
from tercet.models.packed_modules import PackedLinear
from tercet.ops.append_kv import append_kv_
from tercet.ops.linear_packed import linear_packed
from tercet.ops.paged_attention import paged_attention
from tercet.ops.rms_norm import rms_norm
from tercet.ops.rms_norm_quantized import rms_norm_quantized
from tercet.ops.swiglu import swiglu
from tercet.ops.swiglu_quantized import swiglu_quantized


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStep:
    """The decoder's weights, and the angles of the positions that it is run at.

    Attributes:
        config: its sizes.
        embed: ids [B] to rows [B, hidden].
        layers, norm, head: as the decoder has them.
        cos, sin: float32 [L, D/2] of each position, for each kind of rotation.
        blocks: int32 [B, T], as `paged_attention` takes it.
    """

    config: DecoderConfig
    embed: Callable[[Tensor], Tensor]
    layers: Sequence[Layer]
    norm: Norm
    head: Linear
    cos: Sequence[Tensor]
    sin: Sequence[Tensor]
    blocks: Tensor

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
        of_keys, of_values = scales or (none := [None] * len(self.layers), none)
        for layer, k, v, key_scales, value_scales in zip(
            self.layers, keys, values, of_keys, of_values, strict=True
        ):
            hidden = self._run_layer(layer, hidden, lengths, k, v, key_scales, value_scales)
        return self.config.logits(_multiply_norm(self.head, hidden, self.norm))

    def _run_layer(
        self,
        layer: Layer,
        hidden: Tensor,
        lengths: Tensor,
        keys: Tensor,
        values: Tensor,
        key_scales: Tensor | None,
        value_scales: Tensor | None,
    ) -> Tensor:
        qkv = _multiply_norm(layer.qkv, hidden, layer.attention_norm)
        query_norm, key_norm = self._norms_of_heads(layer, qkv)
        q = append_kv_(
            qkv.unsqueeze(1),
            self.cos[layer.rope],
            self.sin[layer.rope],
            keys,
            values,
            self.blocks,
            lengths,
            key_scales=key_scales,
            value_scales=value_scales,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=self.config.norm_epsilon,
        )
        mixed = paged_attention(
            q,
            keys,
            values,
            self.blocks,
            lengths,
            key_scales=key_scales,
            value_scales=value_scales,
            scale=self.config.attention_factor,
            window=layer.window or 0,
            soft_cap=self.config.score_cap or 0.0,
        )
        norm = layer.attention_output_norm
        hidden = self._multiply_add(layer.output, mixed.flatten(1), hidden, norm)
        if isinstance(layer.mlp, Routed):
            made = layer.mlp(_normalize(hidden, layer.mlp_norm))
            return self._add(hidden, made, layer.mlp_output_norm)
        gate_up = _multiply_norm(layer.mlp.gate_up, hidden, layer.mlp_norm)
        return self._multiply_gated(layer.mlp.down, gate_up, hidden, layer.mlp_output_norm)

    def _norms_of_heads(self, layer: Layer, qkv: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The weights of norms of each head; norms over all heads are done here, in place."""
        queries, keys = layer.query_norm, layer.key_norm
        if queries is None or keys is None:
            return None, None
        width = self.config.head_dim
        if queries.weight.shape[0] == keys.weight.shape[0] == width:
            return queries.weight, keys.weight
        middle = self.config.heads * width
        end = middle + self.config.key_value_heads * width
        for norm, part in ((queries, qkv[:, :middle]), (keys, qkv[:, middle:end])):
            part.copy_(_normalize(part, norm))
        return None, None

    def _multiply_gated(
        self, linear: Linear, gate_up: Tensor, hidden: Tensor, norm: Norm | None
    ) -> Tensor:
        """The product of the gated activation, normalized where there is a norm, and hidden."""
        if self.config.activation != "silu":
            gate, up = gate_up.chunk(2, -1)
            gated = ACTIVATIONS[self.config.activation](gate) * up
            return self._multiply_add(linear, gated, hidden, norm)
        packed = packed_behind(linear)
        element = _codes_of(packed)
        if packed is None or element is None:
            return self._multiply_add(linear, swiglu(gate_up), hidden, norm)
        codes, scale, row_sum = swiglu_quantized(gate_up, element=element)
        if self._is_plain_sum(norm):
            return _multiply_codes(packed, codes, scale, row_sum, hidden.dtype, hidden)
        product = _multiply_codes(packed, codes, scale, row_sum, hidden.dtype, None)
        return self._add(hidden, product, norm)

    def _multiply_add(self, linear: Linear, x: Tensor, hidden: Tensor, norm: Norm | None) -> Tensor:
        """The product of x, normalized where there is a norm, and hidden."""
        packed = packed_behind(linear)
        if packed is None or not self._is_plain_sum(norm):
            return self._add(hidden, linear(x), norm)
        transform, activation = packed.transform, "none"
        if transform is not None:
            x, activation = transform.scale_and_rotate(x), transform.product
        return linear_packed(x, packed.weight, packed.bias, residual=hidden, activation=activation)

    def _is_plain_sum(self, norm: Norm | None) -> bool:
        """Whether a product is added as it is, so that its epilogue can."""
        return norm is None and self.config.residual_factor == 1

    def _add(self, hidden: Tensor, product: Tensor, norm: Norm | None) -> Tensor:
        made = _normalize(product, norm)
        return torch.add(hidden, made, alpha=self.config.residual_factor)


def _normalize(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    normed = rms_norm(x, norm.weight, eps=norm.epsilon)
    assert isinstance(normed, Tensor)
    return normed


def _multiply_norm(linear: Linear, hidden: Tensor, norm: Norm | None) -> Tensor:
    """The product of the hidden state, normalized where there is a norm."""
    packed = packed_behind(linear)
    element = _codes_of(packed)
    if packed is None or element is None or norm is None:
        return linear(_normalize(hidden, norm))
    codes, scale, row_sum, *_ = rms_norm_quantized(
        hidden, norm.weight, eps=norm.epsilon, element=element
    )
    return _multiply_codes(packed, codes, scale, row_sum, hidden.dtype, None)


def _multiply_codes(
    packed: PackedLinear,
    codes: Tensor,
    scale: Tensor,
    row_sum: Tensor,
    dtype: torch.dtype,
    residual: Tensor | None,
) -> Tensor:
    return linear_packed(
        codes,
        packed.weight,
        packed.bias,
        residual=residual,
        x_scale=scale,
        x_sum=row_sum,
        out_dtype=dtype,
    )


def _codes_of(packed: PackedLinear | None) -> str | None:
    """The element that x is quantized to, where nothing else happens to it before the product."""
    transform = None if packed is None else packed.transform
    if transform is None or transform.activation is None:
        return None
    plain = transform.scale is None and transform.hadamard is None
    return transform.product if plain else None
