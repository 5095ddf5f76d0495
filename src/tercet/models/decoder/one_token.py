"""What is between linear layers, in C++: for one new position a few calls a layer, or one in all.

For many, a prompt, it is all but attention.

Measured on SmolLM2-135M with ternary weights, one thread: 6.3 ms a token against 8.0 ms with torch
operations, of which the linear layers are 5 ms.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet import environment
from tercet.errors import BuildError
from tercet.kernel.jit.cpp import build
from tercet.models.decoder.kv_cache import Positions
from tercet.models.decoder.norm import Norm
from tercet.models.decoder.rope import Angles
from tercet.packed_weight import int4_rows
from tercet.packed_weight.cpu.product import isa_number

_SOURCE = Path(__file__).with_name("one_token.cpp")
_P, _I32, _I64, _F = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float

GATES = {"silu": 0, "gelu_pytorch_tanh": 1}
"""Activations of gates that one_token.cpp has, with their numbers there."""


@lru_cache(maxsize=1)
def native() -> "Native | None":
    """The compiled functions; None where there is no compiler, of which the packed ops warn."""
    try:
        library = build(_SOURCE)
    except BuildError:
        return None
    library.tercet_add.argtypes = (_P, _P, _P, _F, _F, _I64, _I64, _I32)
    library.tercet_normalize.argtypes = (_P, _P, _F, _I64, _I64, _P, _I32)
    library.tercet_gate.argtypes = (_P, _I32, _I64, _I64, _P, _I32, _I32)
    library.tercet_store.argtypes = (
        *(_P, _I64, _I64, _I64, _I64, _I64, _P, _P, _P, _P, _I32, _F),
        *(_P, _P, _P, _P, _P, _I64, _I64, _I64, _I64, _I32),
    )
    library.tercet_attend.argtypes = (
        *(_P, _I64, _I64, _I64, _I64, _P, _P, _P, _P, _I32, _F, _F, _F),
        *(_P, _P, _P, _P, _P, _I64, _I64, _I64, _I64, _I64, _P, _I32, _I32),
    )
    library.tercet_layer.argtypes = (
        *(_P, _P, _I64, _P, _P, _P, _P, _P, _P, _P),
        *(_I64, _I64, _I64, _I64, _I32),
    )
    library.tercet_layers.argtypes = (
        *(_P, _P, _I64, _P, _I64, _P, _P, _P, _P, _P, _P, _P),
        *(_I64, _I64, _I64, _I64, _I64, _I32),
    )
    for function in (
        *(library.tercet_add, library.tercet_normalize, library.tercet_gate),
        *(library.tercet_store, library.tercet_attend),
        *(library.tercet_layer, library.tercet_layers),
    ):
        function.restype = None
    return Native(library)


BITS = {torch.float32: 32, torch.int8: 8, int4_rows.DTYPE: 4}
"""What one_token.cpp reads keys and values as, by their dtype: bits of a number."""


def addresses(positions: Positions) -> tuple[int | None, ...]:
    """Of keys, values, the scales of both and what is taken off keys; and bits of a number."""
    parts = (
        *(positions.keys, positions.values),
        *(positions.key_scales, positions.value_scales, positions.key_offset),
    )
    found = (None if one is None else one.data_ptr() for one in parts)
    return *found, BITS[positions.keys.dtype]


@dataclass(frozen=True, kw_only=True, eq=False)
class Heads:
    """Sizes and norms of the heads of one layer, and what happens to their scores.

    Attributes:
        count: query heads H.
        key_value: key and value heads.
        dim: D.
        window: positions that a query sees, None for all.
        query_norm: RMSNorm weight float32 [D] of each head, or [H D] of all together; or None.
        key_norm: like query_norm, of the key heads.
        epsilon: of both norms.
        scale: of the scores.
        cap: of the scores, None for none.
    """

    count: int
    key_value: int
    dim: int
    window: int | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    epsilon: float
    scale: float
    cap: float | None

    @property
    def norm_across_heads(self) -> bool:
        """Whether the norms are of all heads of a token together."""
        return self.query_norm is not None and self.query_norm.shape[0] != self.dim


class Native:
    """The functions of one_token.cpp on contiguous float32 tensors on the CPU.

    Attributes:
        layer: a whole one, for `native_layer`.
        layers: several, for `native_layers`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._add, self._normalize = library.tercet_add, library.tercet_normalize
        self._gate = library.tercet_gate
        self._store, self._attend = library.tercet_store, library.tercet_attend
        self.layer, self.layers = library.tercet_layer, library.tercet_layers

    def add_(self, hidden: Tensor, update: Tensor, norm: Norm | None, factor: float) -> None:
        """Adds update, normalized where there is a norm, times factor to hidden [B, K] in place."""
        weight, epsilon = (None, 0.0) if norm is None else (norm.weight.data_ptr(), norm.epsilon)
        sizes = *hidden.shape, torch.get_num_threads()
        self._add(hidden.data_ptr(), update.data_ptr(), weight, epsilon, factor, *sizes)

    def normalize(self, x: Tensor, norm: Norm | None) -> Tensor:
        """RMSNorm of x [B, K]; x itself without a norm."""
        if norm is None:
            return x
        y = torch.empty_like(x)
        given = x.data_ptr(), norm.weight.data_ptr(), norm.epsilon, *x.shape
        self._normalize(*given, y.data_ptr(), torch.get_num_threads())
        return y

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """act(gate) * up [B, I] of gate_up [B, 2 I]; activation is one of GATES."""
        rows, count = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty(rows, count)
        given = gate_up.data_ptr(), GATES[activation], rows, count, y.data_ptr()
        self._gate(*given, torch.get_num_threads(), isa_number(environment.cpu_isa()))
        return y

    def attend(self, qkv: Tensor, heads: Heads, angles: Angles, positions: Positions) -> Tensor:
        """Rotates and stores the new position, and attends over all: [B, H D].

        Args:
            qkv: queries, keys and values [B, (H + 2 H_kv) D]; overwritten.
            heads: sizes, norms and what happens to scores.
            angles: cos and sin [1, 1, D] of the new position.
            positions: of a dtype in BITS; the last one is still to be written.
        """
        batch, length = qkv.shape[0], positions.keys.shape[2]
        first = 0 if heads.window is None else max(0, length - heads.window)
        out = qkv.new_empty(batch, heads.count * heads.dim)
        self._attend(
            qkv.data_ptr(),
            batch,
            *_prepared_by(heads, angles),
            heads.scale,
            heads.cap or 0.0,
            *addresses(positions),
            *positions.keys.stride()[:2],
            first,
            length,
            out.data_ptr(),
            torch.get_num_threads(),
            isa_number(environment.cpu_isa()),
        )
        return out

    def store(self, qkv: Tensor, heads: Heads, angles: Angles, positions: Positions) -> None:
        """Rotates new positions in place and stores their keys and values.

        Args:
            qkv: queries, keys and values [B, T, H + 2 H_kv, D]; queries and keys are overwritten
                by what attention takes, queries by what `Positions.meet` takes.
            heads: sizes and norms.
            angles: cos and sin [T, 1, D] of the new positions.
            positions: of a dtype in BITS; the last T are still to be written.
        """
        batch, count = qkv.shape[:2]
        self._store(
            qkv.data_ptr(),
            batch,
            count,
            *_prepared_by(heads, angles),
            *addresses(positions),
            *positions.keys.stride()[:2],
            positions.keys.shape[2],
            torch.get_num_threads(),
        )


def _prepared_by(heads: Heads, angles: Angles) -> tuple[Any, ...]:
    """Sizes, rotations and norms as `tercet_store` and `tercet_attend` take them."""
    query_norm, key_norm = heads.query_norm, heads.key_norm
    return (
        *(heads.count, heads.key_value, heads.dim),
        *(angles[0].data_ptr(), angles[1].data_ptr()),
        None if query_norm is None else query_norm.data_ptr(),
        None if key_norm is None else key_norm.data_ptr(),
        heads.norm_across_heads,
        heads.epsilon,
    )
