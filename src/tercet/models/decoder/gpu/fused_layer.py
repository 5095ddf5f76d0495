"""A layer by fused ops, with the attention of whoever calls: what a GPU runs.

Between two products stands one launch where an op fuses what lies there: the norm with the
quantization of its result, the gate with its quantization. Residuals are added in the products'
epilogues, but where ranks have parts of a product: there behind their sum, whose parts would lose
more if each was rounded beside a residual that is much larger.
"""

from typing import Protocol

import torch
from torch import Tensor

from tercet.models.decoder.config import ACTIVATIONS
from tercet.models.decoder.layer import Layer
from tercet.models.decoder.linear import Linear, packed_behind
from tercet.models.decoder.mlp import Routed
from tercet.models.decoder.norm import Norm, SharedNorm
from tercet.models.packed_modules import PackedLinear
from tercet.ops.linear_packed import linear_packed
from tercet.ops.rms_norm import rms_norm
from tercet.ops.rms_norm_quantized import rms_norm_quantized
from tercet.ops.swiglu import swiglu
from tercet.ops.swiglu_quantized import swiglu_quantized


class Attention(Protocol):
    """From queries, keys and values of new positions [M, (H + 2 G) D] to what they see [M, H D].

    The norms of each head of queries and keys are given where they are still to be done.
    """

    def __call__(
        self, qkv: Tensor, *, query_norm: Tensor | None, key_norm: Tensor | None
    ) -> Tensor: ...


def run_layer(layer: Layer, hidden: Tensor, attend: Attention) -> Tensor:
    """The residual stream [M, hidden] behind a layer."""
    qkv = multiply_norm(layer.qkv, hidden, layer.attention_norm)
    query_norm, key_norm = _norms_of_heads(layer, qkv)
    mixed = attend(qkv, query_norm=query_norm, key_norm=key_norm)
    hidden = _multiply_add(layer, layer.output, mixed, hidden, layer.attention_output_norm)
    if isinstance(layer.mlp, Routed):
        made = layer.mlp(_normalize(hidden, layer.mlp_norm))
        return _add(layer, hidden, made, layer.mlp_output_norm)
    gate_up = multiply_norm(layer.mlp.gate_up, hidden, layer.mlp_norm)
    return _multiply_gated(layer, layer.mlp.down, gate_up, hidden, layer.mlp_output_norm)


def _norms_of_heads(layer: Layer, qkv: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The weights of norms of each head; norms over all heads are done here, in place."""
    queries, keys = layer.query_norm, layer.key_norm
    if queries is None or keys is None:
        return None, None
    config = layer.config
    width = config.head_dim
    each = queries.weight.shape[0] == keys.weight.shape[0] == width
    if each and not isinstance(queries, SharedNorm):
        return queries.weight, keys.weight
    middle = config.heads * width
    end = middle + config.key_value_heads * width
    for norm, part in ((queries, qkv[:, :middle]), (keys, qkv[:, middle:end])):
        part.copy_(_normalize(part, norm))
    return None, None


def _multiply_gated(
    layer: Layer, linear: Linear, gate_up: Tensor, hidden: Tensor, norm: Norm | None
) -> Tensor:
    """The product of the gated activation, normalized where there is a norm, and hidden."""
    activation = layer.config.activation
    if activation != "silu":
        gate, up = gate_up.chunk(2, -1)
        gated = ACTIVATIONS[activation](gate) * up
        return _multiply_add(layer, linear, gated, hidden, norm)
    packed = packed_behind(linear)
    element = _codes_of(packed)
    if packed is None or element is None:
        return _multiply_add(layer, linear, swiglu(gate_up), hidden, norm)
    codes, scale, row_sum = swiglu_quantized(gate_up, element=element)
    if _is_plain_sum(layer, norm):
        return _multiply_codes(packed, codes, scale, row_sum, hidden.dtype, hidden)
    product = _multiply_codes(packed, codes, scale, row_sum, hidden.dtype, None)
    return _add(layer, hidden, product, norm)


def _multiply_add(
    layer: Layer, linear: Linear, x: Tensor, hidden: Tensor, norm: Norm | None
) -> Tensor:
    """The product of x, normalized where there is a norm, and hidden."""
    packed = packed_behind(linear)
    if packed is None or not _is_plain_sum(layer, norm):
        return _add(layer, hidden, linear(x), norm)
    transform, activation = packed.transform, "none"
    if transform is not None:
        x, activation = transform.scale_and_rotate(x), transform.product
    return linear_packed(x, packed.weight, packed.bias, residual=hidden, activation=activation)


def _is_plain_sum(layer: Layer, norm: Norm | None) -> bool:
    """Whether a product is added as it is, so that its epilogue can."""
    return norm is None and layer.config.residual_factor == 1 and layer.group is None


def _add(layer: Layer, hidden: Tensor, product: Tensor, norm: Norm | None) -> Tensor:
    product = _normalize(layer.sum_ranks(product), norm)
    return torch.add(hidden, product, alpha=layer.config.residual_factor)


def _normalize(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    if isinstance(norm, SharedNorm):
        return norm(x)
    normed = rms_norm(x, norm.weight, eps=norm.epsilon)
    assert isinstance(normed, Tensor)
    return normed


def multiply_norm(linear: Linear, hidden: Tensor, norm: Norm | None) -> Tensor:
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
