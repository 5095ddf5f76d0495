"""Decoder: a Llama that writes many texts at once, one token of each at a time."""

from typing import Any, cast

import torch
from decoder_kernels import attend
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from tercet.compress.qat.student import Student


class Decoder:
    """A teacher's layers in ten kernels each, with room for the keys of all tokens to come.

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
        self._heads = config.num_attention_heads
        layers, width = list(base.layers), config.head_dim
        self._layers = [_Layer(layer) for layer in layers]
        self._room = self._embedding.new_empty(
            len(layers), 2, count, config.num_key_value_heads, length, width
        )
        places = torch.arange(length, device=self._embedding.device)[None]
        cosine, sine = base.rotary_emb(self._embedding.float(), places)
        # so that a pair is rotated by its partner: its first takes the second's negative
        sine[..., : width // 2] *= -1
        self._turn = torch.cat((cosine, sine)).float()

    def scores(self, ids: Tensor, place: int) -> Tensor:
        """Logits [B, V] of what follows ids [B], tokens at that place; those before were given."""
        hidden = self._embedding[ids]
        for layer, room in zip(self._layers, self._room, strict=True):
            given = linear(layer.first(hidden), layer.qkv)
            found = attend(given, room, self._turn, place, self._heads)
            hidden = hidden + linear(found, layer.out)
            gate, up = linear(layer.second(hidden), layer.gate_up).chunk(2, -1)
            hidden = hidden + linear(silu(gate).mul_(up), layer.down)
        return linear(_normed(self._norm, hidden), self._head)


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
