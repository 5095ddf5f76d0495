"""ExpertWeights: the packed weights of the experts of one layer, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.packed_weight.rows16 import LANES, Layout, layout_of
from tercet.packed_weight.weight import LayoutName, Parts, PreparedWeight, validate_layout


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """W [E, N, K] in a compute layout: B = ceil(N / 16) blocks of rows of each expert.

    Attributes:
        codes: int32 [E B, ...], as a PreparedWeight's; expert e has B blocks from block e B on,
            so the rows of each are rounded up to 16, with codes and scales of 0.
        scale: [E B, groups, 16].
        zero: None, or like scale.
        scheme: name of the scheme they were packed in.
        shape: (E, N, K).
        layout: "rows16" or "fragments".

    Raises:
        UnsupportedError: where the codes do not have the shape of that layout.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    scheme: str
    shape: tuple[int, int, int]
    layout: LayoutName

    def __post_init__(self) -> None:
        validate_layout(self.codes, self.layout)

    @classmethod
    def from_parts(
        cls,
        experts: int,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        scheme: str,
        rows: int,
        columns: int,
        layout: LayoutName,
    ) -> "ExpertWeights":
        """The weights of a torch.library op's flat arguments, in the order of weight.SCHEMA."""
        return cls(
            codes=codes,
            scale=scale,
            zero=zero,
            scheme=scheme,
            shape=(experts, rows, columns),
            layout=layout,
        )

    @property
    def parts(self) -> Parts:
        """The weights as flat arguments of a torch.library op, in the order of weight.SCHEMA."""
        return (self.codes, self.scale, self.zero, self.scheme, *self.shape[1:], self.layout)

    def expert(self, index: int) -> PreparedWeight:
        """W [N, K] of one expert, in the same memory."""
        blocks = expert_blocks(self.shape[1])
        at = slice(index * blocks, (index + 1) * blocks)
        return PreparedWeight(
            codes=self.codes[at],
            scale=self.scale[at],
            zero=self.zero[at] if self.zero is not None else None,
            scheme=self.scheme,
            shape=self.shape[1:],
            layout=self.layout,
        )

    @property
    def sizes(self) -> Layout:
        """Sizes of the blocks, groups and codes of one expert."""
        return layout_of(self.scheme, *self.shape[1:])

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors, padding counted."""
        parts = (self.codes, self.scale, self.zero)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    def to(self, device: torch.device | str) -> "ExpertWeights":
        """The same weights on another device, in the layout of that device."""
        return stack([self.expert(at).to(device) for at in range(self.shape[0])])

    def to_layout(self, layout: LayoutName) -> "ExpertWeights":
        """The same weights in the layout of that name, on their device.

        Expert by expert: what fills up the rows to 16 is not the same code in both layouts.
        """
        if self.layout == layout:
            return self
        return stack([self.expert(at).to_layout(layout) for at in range(self.shape[0])])


def expert_blocks(rows: int) -> int:
    """Blocks of 16 rows of each expert."""
    return -(-rows // LANES)


def stack(weights: Sequence[PreparedWeight]) -> ExpertWeights:
    """The weights of the experts of one layer as one.

    UnsupportedError unless they share scheme, shape, layout, device and the dtype of their scales.
    """
    if not weights:
        raise UnsupportedError("stack needs the weight of at least one expert, got none")
    first = weights[0]
    for at, weight in enumerate(weights):
        if _kind(weight) != _kind(first):
            raise UnsupportedError(
                f"cannot stack expert {at}, {_words(weight)}, with expert 0, {_words(first)}: "
                "all must agree"
            )
    zeros = [weight.zero for weight in weights if weight.zero is not None]
    return ExpertWeights(
        codes=torch.cat([weight.codes for weight in weights]),
        scale=torch.cat([weight.scale for weight in weights]),
        zero=torch.cat(zeros) if zeros else None,
        scheme=first.scheme,
        shape=(len(weights), *first.shape),
        layout=first.layout,
    )


def _kind(weight: PreparedWeight) -> tuple[object, ...]:
    return (
        *(weight.scheme, weight.shape, weight.layout),
        *(weight.scale.dtype, weight.codes.device),
    )


def _words(weight: PreparedWeight) -> str:
    return (
        f"{weight.scheme} {list(weight.shape)} in {weight.layout}, scales in "
        f"{str(weight.scale.dtype)[6:]} on {weight.codes.device}"
    )
