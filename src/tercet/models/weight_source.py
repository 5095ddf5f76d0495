"""Where a decoder takes its weights from."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.formats import PackedTensor


class WeightSource(Protocol):
    """Weights by name, read when asked for; an opened packed checkpoint is one."""

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the model."""
        ...

    @property
    def modules(self) -> Mapping[str, PackedModule]:
        """The packed modules by name, without `.weight`."""
        ...

    def names(self) -> Iterable[str]:
        """Tensors that belong to no packed module."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One of those tensors."""
        ...

    def read_packed(self, module: str) -> PackedTensor:
        """The weight of a packed module."""
        ...

    def input_scale(self, module: str) -> Tensor:
        """The vector [K] that multiplies a packed module's input."""
        ...


@runtime_checkable
class MappedSource(WeightSource, Protocol):
    """A source whose tensors lie in mapped files."""

    def view(self, name: str) -> Tensor:
        """A tensor outside of packed modules, of which nothing is read before it is used."""
        ...
