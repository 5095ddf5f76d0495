"""Keys and values of the positions seen so far, as numbers or as codes of 8 or 4 bits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import UnsupportedError, unknown_name
from tercet.models.decoder.state_space.states import LayerState, RecurrentStates
from tercet.packed_weight import cached_rows
from tercet.packed_weight.cached_rows import CACHED, is_turned
from tercet.packed_weight.int4_rows import turn
from tercet.packed_weight.row_codes import check_conversion

CHUNK = 256


def check_kv_cache_dtype(name: str | None, device: torch.device | str = "cpu") -> None:
    """UnsupportedError for a name that is no dtype of cached keys and values on that device.

    Args:
        name: "int8", "fp8_e4m3" or "int4"; None for that of activations.
        device: that the cache is to be on.
    """
    if name is None:
        return
    if name not in CACHED:
        raise UnsupportedError(unknown_name("dtype of a key-value cache", name, CACHED))
    check_conversion(name, torch.device(device))


@dataclass(frozen=True, eq=False)
class Positions:
    """Keys and values of one layer, of all positions and of those that are about to be written.

    Attributes:
        new: where keys and then values of the new positions go [B, 2H, count, D]; D/2 of 4 bits.
        keys, values: of all positions, the new ones included [B, H, length, D], or D/2.
        new_scales: float32 [B, 2H, count] where these are codes, of 4 bits bfloat16
            [B, 2H, count, 2 C].
        key_scales, value_scales: [B, H, length] or [B, H, length, 2 C], likewise.
        key_offset: float32 [H, D], taken off turned keys in 4 bits; None for none.
        state: of the layer's state space, where it has one; overwritten by that of the last new
            position.
    """

    new: Tensor
    keys: Tensor
    values: Tensor
    new_scales: Tensor | None = None
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None
    state: LayerState | None = None
    key_offset: Tensor | None = None

    def write(self, heads: Tensor) -> None:
        """Keys and then values of the new positions [B, 2H, count, D]."""
        if self.new_scales is None:
            self.new.copy_(heads)
            return
        kept = cached_rows.kept_as(self.new.dtype)
        assert kept is not None
        if is_turned(self.new.dtype):
            keys, values = heads.chunk(2, 1)
            turned = turn(keys)
            if self.key_offset is not None:
                turned = turned - self.key_offset.unsqueeze(-2)
            heads = torch.cat((turned, values.float()), 1)
        codes, scales = cached_rows.quantize(heads, kept)
        self.new.copy_(codes)
        self.new_scales.copy_(scales)

    def read(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys, less what is taken off all of them, and values [B, H, length, D] of `dtype`.

        Queries are to meet them by `meet`.
        """
        return _numbers(self.keys, self.key_scales, dtype), _numbers(
            self.values, self.value_scales, dtype
        )

    def meet(self, query: Tensor) -> Tensor:
        """Queries [.., D] as they are to meet the keys that `read` gives."""
        return turn(query).to(query.dtype) if is_turned(self.keys.dtype) else query


def _numbers(part: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    return part if scales is None else cached_rows.numbers(part, scales).to(dtype)


class KeyValueCache:
    """Keys and values of all layers in one tensor that grows by whole chunks of positions.

    Attributes:
        length: positions filled so far.
        key_offsets: as given.

    Args:
        layers: L.
        batch: B.
        heads: key (and value) heads H of a layer.
        head_dim: D.
        dtype: of keys and values.
        device: that they lie on.
        codes: what each key and value of a head is kept as: "int8" or "fp8_e4m3", with one float32
            scale, or "int4" with scales of its groups; None keeps numbers of `dtype`.
        states: of the layers' state spaces, where there are any; of as many sequences.
        key_offsets: float32 [H, D] of each layer, taken off turned keys of "int4", which leaves
            shares of softmax as they are; None for none.

    Raises:
        UnsupportedError: for another name, or heads that cannot be kept so.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        codes: str | None = None,
        states: RecurrentStates | None = None,
        key_offsets: Sequence[Tensor] | None = None,
    ) -> None:
        check_kv_cache_dtype(codes, device)
        self.length = 0
        self._heads = heads
        self._shape = (layers, batch, 2 * heads, head_dim)
        self._codes, self._states = codes, states
        self.key_offsets = key_offsets
        self._dtype = dtype
        self._held, self._scales = cached_rows.empty(
            (layers, batch, 2 * heads, 0), head_dim, codes, dtype, torch.device(device)
        )

    @property
    def capacity(self) -> int:
        """Positions that fit before the next growth."""
        return self._held.shape[3]

    @property
    def batch(self) -> int:
        """Sequences."""
        return self._shape[1]

    @property
    def held(self) -> Tensor:
        """Keys, then values of all layers [L, B, 2H, capacity, D], of 4 bits D/2.

        Another tensor once it grew.
        """
        return self._held

    @property
    def held_scales(self) -> Tensor | None:
        """Scales of codes [L, B, 2H, capacity], of 4 bits [.., 2 C]; None where there are none."""
        return self._scales

    @property
    def size_bytes(self) -> int:
        """Bytes that the cache takes."""
        parts = self._held.nbytes + (0 if self._scales is None else self._scales.nbytes)
        return parts + (0 if self._states is None else self._states.size_bytes)

    @property
    def position_bytes(self) -> int:
        """Bytes of a position of one sequence, in all layers."""
        layers, _, heads, _ = self._shape
        row = self._held.shape[4] * self._held.itemsize
        if self._scales is not None:
            row += self._scales.shape[4:].numel() * self._scales.itemsize
        return layers * heads * row

    def reserve(self, positions: int) -> None:
        """Makes room for so many positions in all."""
        if positions <= self.capacity:
            return
        grown = -(-positions // CHUNK) * CHUNK
        self._held = _grow(self._held, grown, self.length)
        if self._scales is not None:
            self._scales = _grow(self._scales, grown, self.length)

    def truncate(self, length: int) -> None:
        """Forgets all positions but the first `length`; a state space cannot, and forgets all."""
        if self._states is not None and length < self.length:
            self._states.reset()
            length = 0
        self.length = min(self.length, length)

    def empty_like(self, batch: int | None = None) -> "KeyValueCache":
        """An empty one of the same kind, of as many sequences where no other number is given."""
        layers, own, _, head_dim = self._shape
        batch = own if batch is None else batch
        return KeyValueCache(
            layers,
            batch,
            self._heads,
            head_dim,
            self._dtype,
            self._held.device,
            self._codes,
            None if self._states is None else self._states.empty_like(batch),
            self.key_offsets,
        )

    def repeat(self, batch: int, room: int) -> "KeyValueCache":
        """A copy of a cache of one sequence, for `batch` sequences that begin like it.

        Args:
            batch: B of the copy.
            room: positions that fit behind those of the copy before its next growth.
        """
        copy = self.empty_like(batch)
        copy.reserve(self.length + room)
        copy.length = self.length
        for to, part in copy._with_mine(self):
            to[:, :, :, : self.length] = part[:, :, :, : self.length]
        if copy._states is not None and self._states is not None:
            copy._states.copy_from(self._states)
        return copy

    def put(self, sequence: int, other: "KeyValueCache") -> None:
        """Copies what a cache of one sequence holds to the beginning of one of this one's."""
        for to, part in self._with_mine(other):
            to[:, sequence, :, : other.length] = part[:, 0, :, : other.length]
        if self._states is not None and other._states is not None:
            self._states.copy_from(other._states, sequence)

    def copy_from(self, other: "KeyValueCache", length: int) -> None:
        """Holds the first `length` positions of another of as many sequences, and no others.

        Neither has states.
        """
        self.reserve(length)
        self.length = length
        for to, part in self._with_mine(other):
            to[:, :, :, :length] = part[:, :, :, :length]

    def _with_mine(self, other: "KeyValueCache") -> list[tuple[Tensor, Tensor]]:
        """What this one holds beside what the other, of the same kind, does."""
        if self._scales is None or other._scales is None:
            return [(self._held, other._held)]
        return [
            (self._held.view(torch.uint8), other._held.view(torch.uint8)),
            (self._scales, other._scales),
        ]

    def last_positions(self, count: int) -> list[Positions]:
        """The last `count` positions of each layer, as `extend` gives them."""
        start, end = self.length - count, self.length
        parts = self._views(self._held, start, end)
        layers = len(parts)
        scales: list[tuple[Tensor | None, ...]] = [(None, None, None)] * layers
        if self._scales is not None:
            scales = [*self._views(self._scales, start, end)]
        states: list[LayerState | None] = [None] * layers
        if self._states is not None:
            states = [*self._states.of_layers()]
        offsets = self.key_offsets or [None] * layers
        return [
            Positions(*part, *scale, state=state, key_offset=offset)
            for part, scale, state, offset in zip(parts, scales, states, offsets, strict=True)
        ]

    def all_positions(self) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values [B, H, capacity, D] of each layer, of 4 bits D/2.

        A sequence is a block of positions.
        """
        return self._halves(self._held)

    def all_scales(self) -> tuple[list[Tensor], list[Tensor]] | None:
        """Scales of these [B, H, capacity] of each layer, of 4 bits [.., 2 C].

        None where there are none.
        """
        return None if self._scales is None else self._halves(self._scales)

    def advance(self, count: int) -> None:
        """Adds `count` positions of each layer, which `last_positions` gives."""
        self.reserve(self.length + count)
        self.length += count

    def extend(self, count: int) -> list[Positions]:
        """Adds `count` positions of each layer, to be written by the caller."""
        self.advance(count)
        return self.last_positions(count)

    def _views(self, held: Tensor, start: int, end: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each layer the new positions, and keys and values of all, or their scales."""
        new = held[:, :, :, start:end].unbind(0)
        return list(zip(new, *self._halves(held[:, :, :, :end]), strict=True))

    def _halves(self, held: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        keys, values = held[:, :, : self._heads], held[:, :, self._heads :]
        return list(keys.unbind(0)), list(values.unbind(0))


def _grow(held: Tensor, positions: int, length: int) -> Tensor:
    """A copy [L, B, 2H, positions, ..] of the first `length` positions, zeros behind them."""
    grown = torch.zeros(
        *held.shape[:3], positions, *held.shape[4:], dtype=held.dtype, device=held.device
    )
    grown[:, :, :, :length] = held[:, :, :, :length]
    return grown
