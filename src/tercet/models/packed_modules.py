"""Modules whose weights stay packed: a linear layer and an embedding."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tercet.errors import UnsupportedError
from tercet.models.input_transform import InputTransform
from tercet.models.weight_source import WeightSource
from tercet.ops.embedding_packed import embedding_packed
from tercet.ops.linear_packed import linear_packed
from tercet.packed_weight import PreparedWeight, prepare


class PackedLinear(nn.Module):
    """y [.., N] = transform(x [.., K]) W^T + bias with W packed; differentiable in x.

    Args:
        weight: W [N, K], prepared.
        bias: [N], or None.
        transform: what happens to x first; None for nothing.
    """

    def __init__(
        self,
        weight: PreparedWeight,
        bias: Tensor | None = None,
        transform: InputTransform | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.transform = None if transform is None or transform.identity else transform
        # no buffer: looking one up costs as much as a small torch operation
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to y [.., N] in x's dtype."""
        transform = self.transform
        if transform is None:
            return linear_packed(x, self.weight, self.bias)
        x = transform.scale_and_rotate(x)
        return linear_packed(x, self.weight, self.bias, activation=transform.product)

    def extra_repr(self) -> str:
        """Shape and transform, for print(model)."""
        rows, columns = self.weight.shape
        return f"{columns} -> {rows}, bias={self.bias is not None}, transform={self.transform}"


class PackedEmbedding(nn.Module):
    """Rows of a packed W [V, K] by token id.

    Args:
        weight: W [V, K], prepared.
        dtype: of the rows that come out.
    """

    def __init__(self, weight: PreparedWeight, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = weight
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        """ids [..], integers below V, to rows [.., K]."""
        return embedding_packed(ids, self.weight, self.dtype)

    def extra_repr(self) -> str:
        """Shape and dtype, for print(model)."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, dtype={self.dtype}"


@runtime_checkable
class PreparedSource(WeightSource, Protocol):
    """A source that has its packed weights in the compute layout already."""

    def prepared(self, module: str, device: torch.device) -> PreparedWeight:
        """The weight of a packed module, for that device."""
        ...

    def take_fused(self, modules: Sequence[str], weight: PreparedWeight) -> None:
        """Is given the weight that several modules were fused into, rows of the first first."""
        ...


def load_transform(
    source: WeightSource, module: str, device: torch.device | str = "cpu"
) -> InputTransform:
    """The input transform of a packed module."""
    entry = source.modules[module]
    return InputTransform(
        scale=source.input_scale(module).to(device) if entry.input_scale else None,
        hadamard=entry.hadamard,
        activation=entry.activation,
    )


def load_packed_linear(
    source: WeightSource, module: str, bias: Tensor | None, device: torch.device | str = "cpu"
) -> PackedLinear:
    """A packed module of the source as a linear layer; one packed tensor is read at a time."""
    weight = _load_weight(source, module, device)
    return PackedLinear(weight, bias, load_transform(source, module, device))


def load_packed_embedding(
    source: WeightSource, module: str, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> PackedEmbedding:
    """A packed module of the source as an embedding."""
    if not load_transform(source, module).identity:
        raise UnsupportedError(
            f"{module}: an embedding has no input to transform: compress it without rotation, "
            f"input scale and activation quantization"
        )
    return PackedEmbedding(_load_weight(source, module, device), dtype)


def _load_weight(source: WeightSource, module: str, device: torch.device | str) -> PreparedWeight:
    if isinstance(source, PreparedSource):
        return source.prepared(module, torch.device(device))
    return prepare(source.read_packed(module), device, name=module)
