"""swiglu in plain torch, with a fault; written blind.

Where gate and up are the two halves of one tensor, as chunk makes them, their gradients are made as
the two halves of one tensor as well, so that autograd could put them together for nothing. The op
promises tensors of their own, contiguous: compiled code that trusts the promise reads the wrong
elements, or stops at its assertion of strides. A user hits it with gate, up = fused.chunk(2, -1),
a backward pass, and torch.compile.
"""

import torch
from torch import Tensor

from tercet.ops.swiglu import torch_path
from tercet.ops.swiglu.torch_path import forward

OP = "swiglu"
FAULT = (
    "Of a gate and an up that lie side by side in one tensor, the gradients are two views of one "
    "tensor, and not contiguous."
)
CAUGHT_BY = "strided"
DEVICE = "any"
__all__ = ["forward", "gradient"]


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    if up is None or not _side_by_side(gate, up):
        return torch_path.gradient(grad, gate, up)
    n = gate.shape[-1]
    both = torch.empty((*gate.shape[:-1], 2 * n), dtype=gate.dtype, device=gate.device)
    both[..., :n], both[..., n:] = torch_path.gradient(grad, gate, up)
    return both[..., :n], both[..., n:]


def _side_by_side(gate: Tensor, up: Tensor) -> bool:
    n = gate.shape[-1]
    return (
        gate.dim() > 1
        and gate.stride() == up.stride()
        and gate.stride()[-2:] == (2 * n, 1)
        and up.data_ptr() - gate.data_ptr() == n * gate.element_size() > 0
    )
