"""A right but unusual kernel; UNUSUAL says how."""

import torch
from torch import Tensor

OP = "rope"
UNUSUAL = (
    "Right, but unusual: pairs are put together as complex128 numbers, turned by cos + i "
    "sin written out."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    factor = torch.complex(cos.double(), sin.double()).unsqueeze(-2)
    return _turn(q, factor, interleaved), _turn(k, factor, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the conjugate."""
    factor = torch.complex(cos.double(), sin.double()).conj().resolve_conj().unsqueeze(-2)
    return _turn(grad_q, factor, interleaved), _turn(grad_k, factor, interleaved)


def _turn(x: Tensor, factor: Tensor, interleaved: bool) -> Tensor:
    half = factor.shape[-1]
    turned = x[..., : 2 * half].double()
    # [.., R, 2]: a pair side by side
    pairs = turned.unflatten(-1, (half, 2) if interleaved else (2, half))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    # written out: a product of complex numbers has a way of its own with infinities
    real = pairs[..., 0] * factor.real - pairs[..., 1] * factor.imag
    imaginary = pairs[..., 1] * factor.real + pairs[..., 0] * factor.imag
    both = torch.view_as_real(torch.complex(real, imaginary))
    both = both if interleaved else both.transpose(-1, -2)
    return torch.cat((both.flatten(-2).to(x.dtype), x[..., 2 * half :]), -1).contiguous()
