"""The loss of a layer: how far its output is from the uncompressed layer's.

With x the compressed model's hidden states before the layer, t the uncompressed model's behind it,
and f(x; W, n) the layer with decoded weights W and norms n, the loss of a batch is

    mean over tokens of |f(x; W, n) - t|^2 / |t|^2

so the layer also makes up for what the layers before it have lost, and a token whose hidden state
is a thousand times larger than the others', as a first one's is, does not drown those. A layer is
trained after the other, as in BRECQ (arXiv:2102.05426) and Block-AP of EfficientQAT
(arXiv:2407.11062).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.compress.blockwise.tune import Loss

Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""The layer's output [batch, length, width] under parameters by name, for hidden states."""


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Hidden states [sequences, length, width].

    Attributes:
        inputs: the compressed model's before the layer.
        targets: the uncompressed model's behind it.
    """

    inputs: Tensor
    targets: Tensor


def output_loss(forward: Forward, hidden: Hidden) -> Loss:
    """The loss of the layer's output, for `tune`."""

    def loss(values: Mapping[str, Tensor], indices: Tensor) -> Tensor:
        return relative_error(forward(values, hidden.inputs[indices]), hidden.targets[indices])

    return loss


def relative_error(made: Tensor, target: Tensor) -> Tensor:
    """mean over tokens of |y - t|^2 / |t|^2, for y and t [.., width]."""
    size = target.square().sum(-1).clamp_min(torch.finfo(target.dtype).tiny)
    return ((made - target).square().sum(-1) / size).mean()
