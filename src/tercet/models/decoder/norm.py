"""RMSNorm in a decoder: before what it feeds, or behind what is added."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from tercet.models.decoder.tensor_parallel.group import RankGroup
from tercet.models.decoder.weight_reader import WeightReader


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """RMSNorm (arXiv:1910.07467) over the last dimension.

    Attributes:
        weight: [N], in the decoder's dtype or in float32.
        epsilon: added to the mean square.
    """

    weight: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """x [.., N] to y [.., N], in x's dtype."""
        if self.weight.dtype == x.dtype:
            return rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        return rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon).to(x.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedNorm(Norm):
    """RMSNorm over what all ranks have, of which each holds an equal part [.., N] and its weight.

    Attributes:
        group: the ranks.
    """

    group: RankGroup

    def __call__(self, x: Tensor) -> Tensor:
        """This rank's part x [.., N] to y [.., N], in x's dtype."""
        wide = x.float()
        square = self.group.sum_(wide.square().mean(-1, keepdim=True)) / self.group.world_size
        return (wide * torch.rsqrt(square + self.epsilon) * self.weight.float()).to(x.dtype)


def normalize(norm: Norm | None, x: Tensor) -> Tensor:
    """norm(x); x itself where there is no norm."""
    return x if norm is None else norm(x)


def load_norm(
    reader: WeightReader, module: str, size: int, *, epsilon: float, offset: float
) -> Norm:
    """The norm [size] of a module.

    A stored weight that an offset is added to stays in float32: rounded, 1 + w would lose the bits
    that w was stored less one for.
    """
    name = f"{module}.weight"
    if not offset:
        return Norm(weight=reader.tensor(name, (size,)), epsilon=epsilon)
    return Norm(weight=reader.tensor(name, (size,), torch.float32) + offset, epsilon=epsilon)
