"""The linear layers of a decoder: packed or plain, those with one input fused into one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tercet.errors import CheckpointError, UnsupportedError
from tercet.models.decoder.weight_reader import WeightReader
from tercet.models.packed_modules import (
    PackedEmbedding,
    PackedLinear,
    PreparedSource,
    load_packed_linear,
)
from tercet.packed_weight import concatenate

Linear = Callable[[Tensor], Tensor]
"""x [M, K] -> y [M, N]."""


@dataclass(frozen=True, eq=False)
class PlainLinear:
    """y = x W^T + bias with W [N, K] in floating point."""

    weight: Tensor
    bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x [M, K] to y [M, N]."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class SideBySide:
    """The outputs of several linears of one input, one after the other."""

    parts: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], -1)


def load_linear(
    reader: WeightReader, modules: Sequence[tuple[str, int]], columns: int, bias: bool
) -> Linear:
    """The modules (name, rows N_i) over one input [.., K = columns] as a single linear.

    Output columns follow the order of the modules. Packed weights are fused where their formats
    and input transforms agree, plain ones always.
    """
    parts = [_load_one(reader, name, (rows, columns), bias) for name, rows in modules]
    while len(parts) > 1:
        fused = _fuse(parts[0], parts[1])
        if fused is None:
            return SideBySide(tuple(part.forward for part in parts))
        parts[:2] = [fused]
    whole = parts[0]
    # a module alone has its weight already, of any number of rows
    source = reader.source
    if len(modules) > 1 and isinstance(whole, PackedLinear) and isinstance(source, PreparedSource):
        source.take_fused([name for name, _ in modules], whole.weight)
    # nn.Module.__call__ costs 2 us, and a model of 30 layers makes 121 such calls a token
    return whole.forward


def packed_behind(linear: Linear) -> PackedLinear | None:
    """The module whose forward a linear is, if it is that of one packed weight."""
    owner = getattr(linear, "__self__", None)
    return owner if isinstance(owner, PackedLinear) else None


def _load_one(
    reader: WeightReader, module: str, shape: tuple[int, int], bias: bool
) -> PackedLinear | PlainLinear:
    offset = reader.tensor(f"{module}.bias", (shape[0],)) if bias else None
    if reader.is_packed(module, shape):
        return load_packed_linear(reader.source, module, offset, reader.device)
    return PlainLinear(reader.tensor(f"{module}.weight", shape), offset)


def _fuse(
    first: PackedLinear | PlainLinear, second: PackedLinear | PlainLinear
) -> PackedLinear | PlainLinear | None:
    bias = None
    if first.bias is not None and second.bias is not None:
        bias = torch.cat((first.bias, second.bias))
    if isinstance(first, PlainLinear) and isinstance(second, PlainLinear):
        return PlainLinear(torch.cat((first.weight, second.weight)), bias)
    if not isinstance(first, PackedLinear) or not isinstance(second, PackedLinear):
        return None
    one, other = first.transform, second.transform
    if (one is None) != (other is None) or (one and other and not one.same(other)):
        return None
    try:
        return PackedLinear(concatenate([first.weight, second.weight]), bias, one)
    except UnsupportedError:
        return None


def load_head(
    reader: WeightReader, module: str, shape: tuple[int, int], tied: Linear | None
) -> Linear:
    """The output projection [V, K]: the tied one, or a module of its own."""
    if tied is None:
        return load_linear(reader, [(module, shape[0])], shape[1], bias=False)
    if module in reader.source.modules:
        raise CheckpointError(
            f"{module} is packed, but config.json ties it to the embedding "
            f"(tie_word_embeddings): compress again, or set tie_word_embeddings to false"
        )
    reader.skip(f"{module}.weight")
    return tied


def tied_head(embedding: PackedEmbedding | Tensor) -> Linear:
    """The embedding as an output projection; no copy."""
    if isinstance(embedding, PackedEmbedding):
        return PackedLinear(embedding.weight).forward
    return PlainLinear(embedding).forward
