"""Arrival: the tensors of a layer's packed weights, taken one by one as vLLM reads the files."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import CheckpointError, FormatError, UnsupportedError
from tercet.export.vllm.product import FusedProduct
from tercet.formats import PackedTensor
from tercet.formats.shard import Shard, cut
from tercet.models.input_transform import InputTransform

_REFETCH = "the checkpoint is damaged or not whole: copy it again"


class Arrival:
    """Holds what has come; a weight that is complete is cut to its shard at once.

    Args:
        modules: name and entry of each packed module that the layer fuses, in its order.
        shards: which part of each this rank holds.
    """

    def __init__(
        self, modules: Sequence[tuple[str, PackedModule]], shards: Sequence[Shard]
    ) -> None:
        self.modules = tuple(modules)
        self.shards = tuple(shards)
        for (name, entry), shard in zip(self.modules, self.shards, strict=True):
            _check_transform(name, entry, shard)
        self._parts: list[dict[str, Tensor]] = [{} for _ in self.modules]
        self._weights: dict[int, tuple[PackedTensor, InputTransform]] = {}

    @property
    def part_names(self) -> list[str]:
        """The ends of the names of all tensors that are to come: "weight_packed", ..."""
        found = [
            tensor.removeprefix(f"{name}.")
            for name, entry in self.modules
            for tensor in entry.layout(name)
        ]
        return list(dict.fromkeys(found))

    def take(self, index: int, part: str, tensor: Tensor) -> None:
        """A tensor of module `index`, whole, as it stands in the file.

        Raises:
            CheckpointError: it is none that config.json calls for, or the weight is no valid one.
        """
        name, entry = self.modules[index]
        layout = entry.layout(name)
        expected = layout.get(f"{name}.{part}")
        if expected != (tensor.dtype, tuple(tensor.shape)):
            raise CheckpointError(
                f"{name}.{part}: config.json calls for {expected}, the file has {tensor.dtype} "
                f"{list(tensor.shape)}: {_REFETCH}"
            )
        # the loader's tensor may lie in a file that it closes
        self._parts[index][part] = tensor.detach().cpu().clone()
        if len(self._parts[index]) == len(layout):
            self._weights[index] = self._complete(index)
            self._parts[index] = {}

    def _complete(self, index: int) -> tuple[PackedTensor, InputTransform]:
        (name, entry), shard = self.modules[index], self.shards[index]
        parts = self._parts[index]
        weight = PackedTensor(
            codes=parts["weight_packed"],
            scale=parts["weight_scale"],
            zero=parts.get("weight_zero"),
            second=parts.get("weight_second"),
            scheme=entry.scheme,
            shape=entry.shape,
        )
        try:
            weight.validate(name)
        except FormatError as error:
            raise CheckpointError(f"{error}: {_REFETCH}") from error
        scale = parts.get("input_scale")
        transform = InputTransform(
            scale=None if scale is None else scale[shard.first_column : shard.end_column].clone(),
            hadamard=entry.hadamard,
            activation=entry.activation,
        )
        return cut(weight, shard), transform

    def weights(self) -> list[tuple[PackedTensor, InputTransform]]:
        """What came, cut, in the order of the modules; given away, no longer held.

        Raises:
            CheckpointError: which tensors never came.
        """
        missing = [
            tensor
            for index, (name, entry) in enumerate(self.modules)
            if index not in self._weights
            for tensor in entry.layout(name)
            if tensor.removeprefix(f"{name}.") not in self._parts[index]
        ]
        if missing:
            raise CheckpointError(f"the files hold no {', '.join(missing)}: {_REFETCH}")
        found = [self._weights[index] for index in range(len(self.modules))]
        self._weights = {}
        return found

    def product(self, device: torch.device, rows: int) -> FusedProduct:
        """The layer's product of `rows` columns, when everything has come; errors as `weights`."""
        found = self.weights()
        return FusedProduct([w for w, _ in found], [_on(device, t) for _, t in found], device, rows)


def _on(device: torch.device, transform: InputTransform) -> InputTransform:
    scale = transform.scale
    return replace(transform, scale=None if scale is None else scale.to(device))


def _check_transform(name: str, entry: PackedModule, shard: Shard) -> None:
    size, columns = entry.hadamard, shard.shape[1]
    if size is not None and columns < entry.shape[1] and columns % size:
        raise UnsupportedError(
            f"{name}: its input is rotated in blocks of {size}, and a rank holds {columns} of "
            f"{entry.shape[1]} columns: use a tensor-parallel size that leaves whole blocks, or 1"
        )
