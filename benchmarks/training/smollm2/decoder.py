"""Decoder: a Llama that writes many texts at once, one token of each at a time."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from tercet.compress.qat.student import Student


class Decoder:
    """A teacher's layers in twenty kernels each, with room for the keys of all tokens to come.

    A step of transformers' own takes three times as long: it is many small kernels.

    Args:
        teacher: a Llama whose linears have no biases.
        count: B, texts.
        length: tokens of a text, at most.
    """

    def __init__(self, teacher: Student, count: int, length: int) -> None:
        model = cast(Any, teacher.model)
        base, config = model.base_model, model.config
        self._embedding, self._norm = base.embed_tokens.weight, base.norm
        self._head = teacher.head()
        self._width = config.head_dim
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        layers = list(base.layers)
        self._layers = [_Layer(layer) for layer in layers]
        self._room = self._embedding.new_empty(
            len(layers), 2, count, self._groups, length, self._width
        )
        places = torch.arange(length, device=self._embedding.device)[None]
        cosine, sine = base.rotary_emb(self._embedding, places)
        half = self._width // 2
        self._cosine = cosine[0]
        # so that rotating a pair is a roll: its first takes the second's negative
        self._sine = torch.cat((-sine[0, :, :half], sine[0, :, half:]), -1)

    def scores(self, ids: Tensor, place: int) -> Tensor:
        """Logits [B, V] of what follows ids [B], tokens at that place; those before were given."""
        hidden = self._embedding[ids]
        # cuDNN's attention would be planned anew for each length
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            for layer, room in zip(self._layers, self._room, strict=True):
                hidden = hidden + self._attention(layer, room, layer.first(hidden), place)
                gate, up = linear(layer.second(hidden), layer.gate_up).chunk(2, -1)
                hidden = hidden + linear(silu(gate).mul_(up), layer.down)
        return linear(_normed(self._norm, hidden), self._head)

    def _attention(self, layer: "_Layer", room: Tensor, normed: Tensor, place: int) -> Tensor:
        count = len(normed)
        heads = linear(normed, layer.qkv).view(count, -1, self._width)
        turning = heads[:, : self._heads + self._groups]
        turned = torch.addcmul(
            turning * self._cosine[place],
            turning.roll(self._width // 2, -1),
            self._sine[place],
        )
        room[0, :, :, place] = turned[:, self._heads :]
        room[1, :, :, place] = heads[:, self._heads + self._groups :]
        # heads that share keys are rows of one product
        query = turned[:, : self._heads].reshape(count, self._groups, -1, self._width)
        keys, values = room[:, :, :, : place + 1]
        found = scaled_dot_product_attention(query, keys, values)
        return linear(found.reshape(count, -1), layer.out)


class _Layer:
    """Weights of one layer, those of the same input together."""

    def __init__(self, layer: Any) -> None:
        self._norms = layer.input_layernorm, layer.post_attention_layernorm
        attention, mlp = layer.self_attn, layer.mlp
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([part.weight for part in parts])
        self.out = attention.o_proj.weight
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.down = mlp.down_proj.weight

    def first(self, hidden: Tensor) -> Tensor:
        return _normed(self._norms[0], hidden)

    def second(self, hidden: Tensor) -> Tensor:
        return _normed(self._norms[1], hidden)


def _normed(norm: Any, hidden: Tensor) -> Tensor:
    return rms_norm(hidden, (hidden.shape[-1],), norm.weight, norm.variance_epsilon)
