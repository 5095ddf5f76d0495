"""The product of a layer that vLLM has fused: y = x W^T + b for the packed weights side by side."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.models.input_transform import InputTransform
from tercet.ops.embedding_packed import embedding_packed
from tercet.ops.linear_packed import linear_packed
from tercet.packed_weight import PreparedWeight, concatenate, prepare
from tercet.packed_weight.weight import LayoutName


class PackedWeight(nn.Module):
    """One prepared weight W [N, K]; its tensors are parameters, so that engines count them."""

    def __init__(self, weight: PreparedWeight, transform: InputTransform) -> None:
        super().__init__()
        self.scheme, self.shape = weight.scheme, weight.shape
        self.layout: LayoutName = weight.layout
        self.hadamard, self.activation = transform.hadamard, transform.activation
        for name, tensor in (
            ("codes", weight.codes),
            ("scale", weight.scale),
            ("zero", weight.zero),
            ("input_scale", transform.scale),
        ):
            held = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(name, held)

    @property
    def weight(self) -> PreparedWeight:
        """The weight, on the parameters' device."""
        held = cast("dict[str, Tensor]", self._parameters)
        return PreparedWeight(
            codes=held["codes"],
            scale=held["scale"],
            zero=held["zero"],
            scheme=self.scheme,
            shape=self.shape,
            layout=self.layout,
        )

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [.., K] to y [.., N] in x's dtype."""
        transform = InputTransform(
            scale=self._parameters["input_scale"],
            hadamard=self.hadamard,
            activation=self.activation,
        )
        return linear_packed(transform(x), self.weight, bias)


class FusedProduct(nn.Module):
    """The outputs of several weights of one input, one after the other, `rows` columns in all.

    Weights whose formats and input transforms agree are multiplied as one. Columns beyond the
    weights' rows (a vocabulary filled up to a round number) are 0.
    """

    def __init__(
        self,
        weights: Sequence[PackedTensor],
        transforms: Sequence[InputTransform],
        device: torch.device,
        rows: int,
    ) -> None:
        super().__init__()
        self.rows = rows
        found = [(prepare(w, device), t) for w, t in zip(weights, transforms, strict=True)]
        while len(found) > 1:
            fused = _fuse(found[0], found[1])
            if fused is None:
                break
            found[:2] = [fused]
        self.parts = nn.ModuleList(PackedWeight(*part) for part in found)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [.., K] to y [.., rows] in x's dtype."""
        outputs: list[Tensor] = []
        first = 0
        for part in self.parts:
            rows = cast(PackedWeight, part).shape[0]
            outputs.append(part(x, bias[first : first + rows] if bias is not None else None))
            first += rows
        if first < self.rows:
            outputs.append(x.new_zeros((*x.shape[:-1], self.rows - first)))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def rows_of(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows [.., K] of the only weight, by number."""
        (part,) = self.parts
        return embedding_packed(ids, cast(PackedWeight, part).weight, dtype)


_Found = tuple[PreparedWeight, InputTransform]


def _fuse(first: _Found, second: _Found) -> _Found | None:
    if not first[1].same(second[1]):
        return None
    try:
        return concatenate([first[0], second[0]]), first[1]
    except UnsupportedError:
        return None
