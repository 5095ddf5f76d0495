"""Reads a source's weights with their shapes checked, and knows what nobody asked for."""

import torch
from torch import Tensor

from tercet.errors import CheckpointError
from tercet.models.weight_source import WeightSource


class WeightReader:
    """A source, the dtype to read in, and the names not read yet.

    Args:
        source: where the weights are.
        dtype: of the plain tensors that come out.
        device: of all that comes out.
    """

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.source = source
        self.dtype = dtype
        self.device = torch.device(device)
        self._known = set(source.names())
        self._unread = self._known | set(source.modules)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """A plain tensor of that shape; CheckpointError where it is not there.

        Args:
            name: of the tensor.
            shape: that it must have.
            dtype: to read it in; None for the reader's.
        """
        if name not in self._known:
            raise CheckpointError(
                f"the checkpoint has no tensor {name!r}, which its config calls for"
            )
        found = self.source.tensor(name)
        self._check(name, tuple(found.shape), shape)
        self._unread.discard(name)
        return found.to(self.device, self.dtype if dtype is None else dtype)

    def is_packed(self, module: str, shape: tuple[int, int]) -> bool:
        """Whether the module is packed; if so, its shape is checked and it counts as read."""
        entry = self.source.modules.get(module)
        if entry is None:
            return False
        self._check(module, entry.shape, shape)
        self._unread.discard(module)
        return True

    def skip(self, name: str) -> None:
        """Counts a name as read, there or not."""
        self._unread.discard(name)

    def finish(self) -> None:
        """CheckpointError where something was left unread: it is then not the stored model."""
        left = sorted(name for name in self._unread if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise CheckpointError(
                f"the checkpoint holds {len(left)} tensors that its config does not use, the first "
                f"{left[0]!r}: config.json and weights belong to different models"
            )

    @staticmethod
    def _check(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise CheckpointError(
                f"{name}: shape {list(found)}, but config.json calls for {list(wanted)}"
            )
