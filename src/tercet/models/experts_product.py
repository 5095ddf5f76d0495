"""The experts of one layer of a mixture, packed: routed rows through grouped products.

Each token goes to top_k of E experts. Its rows are sorted by expert once, every projection of all
experts is one `grouped_linear_packed`, and the outputs are weighted, put back and added.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor
from tercet.models.input_transform import InputTransform
from tercet.ops.grouped_linear_packed import grouped_linear_packed, sort_by_expert
from tercet.packed_weight import PreparedWeight, concatenate, prepare
from tercet.packed_weight.expert_weights import ExpertWeights, stack
from tercet.packed_weight.weight import LayoutName

Weight = tuple[PackedTensor, InputTransform]
"""W [N, K] of one expert, and what happens to its input."""

Projection = Sequence[tuple[str, Weight]]
"""Name and weight of each expert's, in their order."""


class GroupedPart(nn.Module):
    """One projection of all experts: W [E, N, K], and the scales of their inputs [E, K], if any."""

    def __init__(self, weight: ExpertWeights, transforms: Sequence[InputTransform]) -> None:
        super().__init__()
        self.scheme, self.shape = weight.scheme, weight.shape
        self.layout: LayoutName = weight.layout
        self.hadamard, self.activation = transforms[0].hadamard, transforms[0].activation
        scales = [t.scale for t in transforms if t.scale is not None]
        for name, tensor in (
            ("codes", weight.codes),
            ("scale", weight.scale),
            ("zero", weight.zero),
            ("input_scale", torch.stack(scales).to(weight.codes.device) if scales else None),
        ):
            held = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(name, held)

    def forward(
        self, x: Tensor, expert: Tensor, offsets: Tensor, row_weight: Tensor | None = None
    ) -> Tensor:
        """x [T, K], sorted by expert, to y [T, N] in x's dtype.

        Args:
            x: the rows.
            expert: int64 [T], of each row.
            offsets: int32 [E + 1], where each expert's rows begin.
            row_weight: float32 [T] to weigh the outputs with, or None.
        """
        held = cast("dict[str, Tensor]", self._parameters)
        scale = self._parameters["input_scale"]
        weight = ExpertWeights(
            codes=held["codes"],
            scale=held["scale"],
            zero=held["zero"],
            scheme=self.scheme,
            shape=self.shape,
            layout=self.layout,
        )
        transform = InputTransform(
            scale=None if scale is None else scale[expert],
            hadamard=self.hadamard,
            activation=self.activation,
        )
        return grouped_linear_packed(
            transform.scale_and_rotate(x),
            offsets,
            weight,
            row_weight=row_weight,
            activation=transform.product,
        )


class ExpertsProduct(nn.Module):
    """sum over a token's experts of weight * down(act(gate(x)) * up(x)).

    Gate and up of one format and input transform are multiplied as one.

    Args:
        gate, up: W [I, H] of each expert.
        down: W [H, I] of each.
        act: between them.
        device: where to hold them.
    """

    def __init__(
        self,
        gate: Projection,
        up: Projection,
        down: Projection,
        act: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.act = act
        inner = [_prepare_experts(gate, device), _prepare_experts(up, device)]
        transforms = [_transforms(gate), _transforms(up)]
        fused = _fuse_gate_up(inner[0], inner[1])
        pairs = zip(*transforms, strict=True)
        if fused is not None and all(first.same(second) for first, second in pairs):
            inner = [fused]
        self.inner = nn.ModuleList(
            GroupedPart(stack(w), t) for w, t in zip(inner, transforms, strict=False)
        )
        self.outer = GroupedPart(stack(_prepare_experts(down, device)), _transforms(down))

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, H] to [tokens, H], in x's dtype.

        Args:
            x: the tokens.
            experts: [tokens, top_k], int32 or int64, each token's experts.
            weights: [tokens, top_k], how much each of them counts.
        """
        tokens, top_k = experts.shape
        order, offsets = sort_by_expert(experts, self.outer.shape[0])
        expert, rows = experts.flatten()[order].long(), x[order // top_k]
        inner = torch.cat([part(rows, expert, offsets) for part in self.inner], -1)
        gate, up = inner.chunk(2, -1)
        row_weight = weights.flatten()[order].float()
        y = self.outer(self.act(gate) * up, expert, offsets, row_weight)
        placed = torch.empty_like(y).index_copy_(0, order, y)
        return placed.view(tokens, top_k, y.shape[-1]).sum(1)


def _prepare_experts(projection: Projection, device: torch.device) -> list[PreparedWeight]:
    """UnsupportedError where the experts differ in what one product has in common."""
    first, (weight, transform) = projection[0]
    for name, (other, its) in projection[1:]:
        same = (other.scheme.name, other.scale.dtype) == (weight.scheme.name, weight.scale.dtype)
        steps = (its.hadamard, its.activation, its.scale is None)
        if not same or steps != (transform.hadamard, transform.activation, transform.scale is None):
            raise UnsupportedError(
                f"{name} is {_words(other, its)}, {first} is {_words(weight, transform)}: the "
                f"experts of a layer are multiplied as one: give them the same format and "
                f"algorithm in the plan"
            )
    return [prepare(weight, device) for _, (weight, _) in projection]


def _words(weight: PackedTensor, transform: InputTransform) -> str:
    scaled = "scaled" if transform.scale is not None else "plain"
    return f"{weight.scheme.name} of a {scaled} input, hadamard {transform.hadamard}"


def _transforms(projection: Projection) -> list[InputTransform]:
    return [transform for _, (_, transform) in projection]


def _fuse_gate_up(
    gate: list[PreparedWeight], up: list[PreparedWeight]
) -> list[PreparedWeight] | None:
    """W [2 I, H] of each expert; None where gate and up do not fit together."""
    try:
        return [concatenate([first, second]) for first, second in zip(gate, up, strict=True)]
    except UnsupportedError:
        return None
