"""A packed checkpoint's weights on their way into a model: files mapped, each byte read once."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from safetensors import safe_open
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint, assemble
from tercet.formats import PackedTensor


class WeightStream:
    """The weights of an open checkpoint for a single load; made by `stream_weights`.

    Unlike those of PackedCheckpoint, packed weights lie in the mapped file and are not validated:
    `prepare` copies them into the compute layout and checks them on the way.
    """

    def __init__(self, checkpoint: PackedCheckpoint) -> None:
        self._checkpoint = checkpoint
        # one file at a time: what stays mapped counts as memory of the process
        self._mapped: tuple[str, Any] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the model."""
        return self._checkpoint.config

    @property
    def modules(self) -> dict[str, PackedModule]:
        """The packed modules by name."""
        return self._checkpoint.modules

    def names(self) -> list[str]:
        """Names of the tensors outside of packed modules."""
        return self._checkpoint.names()

    def tensor(self, name: str) -> Tensor:
        """One stored tensor, in memory of its own."""
        return self._map(name).clone()

    def view(self, name: str) -> Tensor:
        """One of those tensors in the mapped file: what is not used of it is not read."""
        return self._map(name)

    def read_packed(self, module: str) -> PackedTensor:
        """The weight of a packed module in the mapped file, nothing of it validated."""
        return assemble(self.modules[module], module, self._map)

    def input_scale(self, module: str) -> Tensor:
        """The vector [K] that multiplies the module's input, checked."""
        return self._checkpoint.input_scale(module)

    def _map(self, name: str) -> Tensor:
        name_of_file = self._checkpoint.file_of[name]
        if self._mapped is None or self._mapped[0] != name_of_file:
            path = str(self._checkpoint.directory / name_of_file)
            self._mapped = name_of_file, cast(Any, safe_open)(path, "pt")
        return self._mapped[1].get_tensor(name)


@contextmanager
def stream_weights(checkpoint: PackedCheckpoint) -> Generator[WeightStream]:
    """The checkpoint's weights for one load, which happens in the block.

    Raises:
        CheckpointError: where a weight breaks one of its invariants.
    """
    with checkpoint.name_damage():
        yield WeightStream(checkpoint)
