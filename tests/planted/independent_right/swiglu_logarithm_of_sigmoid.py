"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "swiglu"
UNUSUAL = (
    "The sigmoid as exp(-softplus(-g)) in float64, results written through transposed temporaries."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]


def _parts(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if up is None:
        n = gate.shape[-1] // 2
        gate, up = gate[..., :n], gate[..., n:]
    g, u = gate.double(), up.double()
    return g, u, torch.exp(-torch.logaddexp(torch.zeros_like(g), -g))


def _out(values: Tensor, dtype: torch.dtype) -> Tensor:
    across = torch.empty(values.shape[::-1], dtype=dtype, device=values.device)
    across.permute(*reversed(range(values.dim()))).copy_(values)
    return across.permute(*reversed(range(values.dim()))).clone(
        memory_format=torch.contiguous_format
    )


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    g, u, s = _parts(gate, up)
    return _out(g * s * u, gate.dtype)


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    g, u, s = _parts(gate, up)
    d = grad.double()
    other = torch.exp(-torch.logaddexp(torch.zeros_like(g), g))
    of_gate, of_up = d * u * (s + g * s * other), d * g * s
    if up is None:
        return _out(torch.cat((of_gate, of_up), -1), gate.dtype), gate.new_empty(0)
    return _out(of_gate, gate.dtype), _out(of_up, gate.dtype)
