"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.ops.rope import torch_path

OP = "rope"
FAULT = (
    "Interleaved pairs of float32 are viewed as complex numbers, which takes only even strides and "
    "an even storage offset: q or k cut out of rows of an odd width raises RuntimeError."
)
CAUGHT_BY = "layout"
DEVICE = "any"

__all__ = ["forward", "gradient"]


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = cos.shape[-1]
    part = x[..., : 2 * pairs].float()
    if x.shape[-1] % 2 or x.stride(-1) != 1:
        part = part.contiguous()
    z = torch.view_as_complex(part.unflatten(-1, (pairs, 2)))
    y = x.clone(memory_format=torch.contiguous_format)
    c, s = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    y[..., 0 : 2 * pairs : 2] = z.real * c - z.imag * s
    y[..., 1 : 2 * pairs : 2] = z.imag * c + z.real * s
    return y


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    if interleaved:
        return _turn(q, cos, sin), _turn(k, cos, sin)
    return torch_path.forward(q, k, cos, sin, False)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient."""
    return forward(grad_q, grad_k, cos, -sin, interleaved)
