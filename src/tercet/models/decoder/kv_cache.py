"""Keys and values of the positions seen so far."""

import torch
from torch import Tensor

CHUNK = 256


class KeyValueCache:
    """Keys and values of all layers in one tensor that grows by whole chunks of positions.

    Attributes:
        length: positions filled so far.

    Args:
        layers: L.
        batch: B.
        heads: key (and value) heads H of a layer.
        head_dim: D.
        dtype: of keys and values.
        device: that they lie on.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.length = 0
        self._heads = heads
        self._shape = (layers, batch, 2 * heads, head_dim)
        self._held = torch.empty(layers, batch, 2 * heads, 0, head_dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Positions that fit before the next growth."""
        return self._held.shape[3]

    @property
    def held(self) -> Tensor:
        """Keys, then values of all layers [L, B, 2H, capacity, D]; another tensor once it grew."""
        return self._held

    @property
    def size_bytes(self) -> int:
        """Bytes that the cache takes."""
        return self._held.nbytes

    def reserve(self, positions: int) -> None:
        """Makes room for so many positions in all."""
        if positions <= self.capacity:
            return
        layers, batch, heads, head_dim = self._shape
        grown = -(-positions // CHUNK) * CHUNK
        held = self._held.new_zeros(layers, batch, heads, grown, head_dim)
        held[:, :, :, : self.length] = self._held[:, :, :, : self.length]
        self._held = held

    def truncate(self, length: int) -> None:
        """Forgets all positions but the first `length`."""
        self.length = min(self.length, length)

    def repeat(self, batch: int, room: int) -> "KeyValueCache":
        """A copy of a cache of one sequence, for `batch` sequences that begin like it.

        Args:
            batch: B of the copy.
            room: positions that fit behind those of the copy before its next growth.
        """
        layers, _, _, head_dim = self._shape
        held = self._held
        copy = KeyValueCache(layers, batch, self._heads, head_dim, held.dtype, held.device)
        copy.reserve(self.length + room)
        copy._held[:, :, :, : self.length] = held[:, :, :, : self.length]
        copy.length = self.length
        return copy

    def put(self, sequence: int, other: "KeyValueCache") -> None:
        """Copies what a cache of one sequence holds to the beginning of one of this one's."""
        self._held[:, sequence, :, : other.length] = other.held[:, 0, :, : other.length]

    def all_positions(self) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values [B, H, capacity, D] of each layer: a block of positions a sequence."""
        keys, values = self._held[:, :, : self._heads], self._held[:, :, self._heads :]
        return list(keys.unbind(0)), list(values.unbind(0))

    def extend(self, count: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Adds `count` positions, to be written by the caller.

        Returns:
            For each layer: where keys and then values of the new positions go [B, 2H, count, D],
            and the keys and the values [B, H, length, D] of all positions, the new ones included.
        """
        start, end = self.length, self.length + count
        self.reserve(end)
        self.length = end
        new = self._held[:, :, :, start:end].unbind(0)
        seen = self._held[:, :, :, :end]
        keys, values = seen[:, :, : self._heads], seen[:, :, self._heads :]
        return list(new), list(keys.unbind(0)), list(values.unbind(0))
