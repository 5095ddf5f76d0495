"""What state spaces keep of the positions seen so far: of one size, however many they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.models.decoder.config import StateSpaceConfig


@dataclass(frozen=True, eq=False)
class LayerState:
    """That of one layer.

    Attributes:
        inputs: the convolution's last ones [B, channels, width - 1].
        states: float32 [B, H, P, N].
    """

    inputs: Tensor
    states: Tensor


class RecurrentStates:
    """Those of all layers; all 0 before the first position.

    Args:
        config: sizes of the state spaces.
        layers: L.
        batch: B.
        dtype: of the convolution's inputs.
        device: that they lie on.
    """

    def __init__(
        self,
        config: StateSpaceConfig,
        layers: int,
        batch: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self._config, self._layers, self._dtype = config, layers, dtype
        inputs = (layers, batch, config.channels, config.width - 1)
        states = (layers, batch, config.heads, config.head_dim, config.state)
        self._inputs = torch.zeros(inputs, dtype=dtype, device=device)
        self._states = torch.zeros(states, dtype=torch.float32, device=device)

    @property
    def size_bytes(self) -> int:
        """Bytes that they take."""
        return self._inputs.nbytes + self._states.nbytes

    def empty_like(self, batch: int) -> "RecurrentStates":
        """Those of so many sequences, before their first position."""
        return RecurrentStates(self._config, self._layers, batch, self._dtype, self._states.device)

    def reset(self) -> None:
        """Forgets every position."""
        self._inputs.zero_()
        self._states.zero_()

    def of_layers(self) -> list[LayerState]:
        """Of each layer, to be overwritten."""
        return [
            LayerState(*each)
            for each in zip(self._inputs.unbind(0), self._states.unbind(0), strict=True)
        ]

    def copy_from(self, other: "RecurrentStates", sequence: int | None = None) -> None:
        """Those of another: of as many sequences or one for all; or of one, for this `sequence`."""
        which = slice(None) if sequence is None else slice(sequence, sequence + 1)
        self._inputs[:, which] = other._inputs
        self._states[:, which] = other._states
