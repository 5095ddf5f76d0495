"""Whole layers for one new position in one call of C++, where all of their linears are packed.

Measured on SmolLM2-135M, eight calls a layer: 10 ms of Python a token beside 9 ms of work.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tercet.models.decoder.kv_cache import KeyValueCache, Positions
from tercet.models.decoder.linear import packed_behind
from tercet.models.decoder.norm import Norm
from tercet.models.decoder.one_token import BITS, GATES, Heads, Native, addresses
from tercet.models.decoder.rope import Angles
from tercet.models.packed_modules import PackedLinear
from tercet.packed_weight.cpu.bound_product import BoundProduct, bind

_P, _I32, _I64, _F = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class LayerWeights(ctypes.Structure):
    """Mirrors `struct LayerWeights` of one_token.cpp, field by field."""

    _fields_ = (
        ("qkv", BoundProduct),
        ("output", BoundProduct),
        ("gate_up", BoundProduct),
        ("down", BoundProduct),
        ("attention_norm", _P),
        ("attention_output_norm", _P),
        ("mlp_norm", _P),
        ("mlp_output_norm", _P),
        ("query_norm", _P),
        ("key_norm", _P),
        ("hidden", _I64),
        ("intermediate", _I64),
        ("heads", _I64),
        ("key_value_heads", _I64),
        ("dim", _I64),
        ("window", _I64),
        ("norm_across_heads", _I32),
        ("gate", _I32),
        ("epsilon", _F),
        ("scale", _F),
        ("cap", _F),
        ("factor", _F),
    )


class NativeLayer:
    """The layer; holds what its pointers point to.

    Attributes:
        address: of its weights.

    Args:
        native: the functions.
        weights: of the layer.
        held: tensors whose memory `weights` names.
    """

    def __init__(self, native: Native, weights: LayerWeights, held: Sequence[Any]) -> None:
        self._run, self._weights, self._held = native.layer, weights, held
        self.address = ctypes.addressof(weights)

    def __call__(self, hidden: Tensor, angles: Angles, positions: Positions) -> None:
        """Adds the layer to hidden [B, K] in place; the rest as `Native.attend` takes it."""
        self._run(
            self.address,
            hidden.data_ptr(),
            hidden.shape[0],
            angles[0].data_ptr(),
            angles[1].data_ptr(),
            *addresses(positions),
            *positions.keys.stride()[:2],
            positions.keys.shape[2],
            torch.get_num_threads(),
        )


class NativeLayers:
    """All layers of a decoder in one call.

    Args:
        native: the functions.
        layers: in their order.
        rotations: the kind of rotation of each.
    """

    def __init__(
        self, native: Native, layers: Sequence[NativeLayer], rotations: Sequence[int]
    ) -> None:
        self._run, self._layers = native.layers, layers
        self._addresses = (_P * len(layers))(*(one.address for one in layers))
        self._rotations = (_I32 * len(layers))(*rotations)

    def __call__(self, hidden: Tensor, angles: Sequence[Angles], cache: KeyValueCache) -> None:
        """Adds the layers to hidden [B, K] in place.

        Args:
            hidden: the residual stream of the new position.
            angles: cos and sin [1, 1, D] of the new position, of each kind of rotation.
            cache: its last position is written.
        """
        held, scales = cache.held, cache.held_scales
        half = held.shape[2] // 2
        pointers, offsets = _P * len(angles), cache.key_offsets
        self._run(
            self._addresses,
            self._rotations,
            len(self._layers),
            hidden.data_ptr(),
            hidden.shape[0],
            pointers(*(cos.data_ptr() for cos, _ in angles)),
            pointers(*(sin.data_ptr() for _, sin in angles)),
            held.data_ptr(),
            held[:, :, half:].data_ptr(),
            None if scales is None else scales.data_ptr(),
            None if scales is None else scales[:, :, half:].data_ptr(),
            None
            if offsets is None
            else (_P * len(offsets))(*(each.data_ptr() for each in offsets)),
            BITS[held.dtype],
            *held.stride()[:3],
            cache.length,
            torch.get_num_threads(),
        )


def native_layer(
    native: Native,
    *,
    linears: Sequence[Callable[[Tensor], Tensor]],
    norms: Sequence[Norm | None],
    heads: Heads,
    activation: str,
    factor: float,
) -> NativeLayer | None:
    """The layer, or None where it does more than C++ does.

    That is where a linear is not one packed product of its plain input, the gate is none of GATES,
    or a norm has an epsilon of its own.

    Args:
        native: the functions.
        linears: qkv, output, gate_up and down.
        norms: float32 [K], before attention and of what it adds, and so of the network; or None.
        heads: sizes and norms of the heads, whose epsilon is that of every norm.
        activation: of the gate.
        factor: that what is added is multiplied by.
    """
    packed = [owner for one in linears if (owner := _plain_packed_linear(one)) is not None]
    products = [bind(one.weight, one.bias) for one in packed]
    if len(packed) < len(linears) or None in products or activation not in GATES:
        return None
    if any(norm is not None and norm.epsilon != heads.epsilon for norm in norms):
        return None
    held = [None if norm is None else norm.weight for norm in norms]
    held += [heads.query_norm, heads.key_norm]
    if any(one is not None and not one.is_contiguous() for one in held):
        return None
    weights = LayerWeights(
        *products,
        *(None if one is None else one.data_ptr() for one in held),
        packed[1].weight.shape[0],
        packed[3].weight.shape[1],
        *(heads.count, heads.key_value, heads.dim, heads.window or 0),
        *(heads.norm_across_heads, GATES[activation]),
        *(heads.epsilon, heads.scale, heads.cap or 0.0, factor),
    )
    return NativeLayer(native, weights, [*packed, *held])


def _plain_packed_linear(linear: Callable[[Tensor], Tensor]) -> PackedLinear | None:
    """The module whose forward a linear is, if that is a packed product and no more."""
    owner = packed_behind(linear)
    return owner if owner is not None and owner.transform is None else None
