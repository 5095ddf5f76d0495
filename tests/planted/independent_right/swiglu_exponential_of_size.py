"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

OP = "swiglu"
UNUSUAL = (
    "Sigmoid by exp(-|gate|) in double precision, 33 rows at a time from the last to the first."
)
DEVICE = "any"
__all__ = ["forward", "gradient"]

_ROWS = 33


def _sigmoid(g: Tensor) -> Tensor:
    e = torch.exp(-g.abs())
    return torch.where(g < 0, e, 1.0) / (1 + e)


def _parts(gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    if up is None:
        half = gate.shape[-1] // 2
        gate, up = gate[..., :half], gate[..., half:]
    shape = (gate.shape[:-1].numel(), gate.shape[-1])
    return gate.reshape(shape), up.reshape(shape)


def _blocks(count: int) -> list[slice]:
    return [slice(first, first + _ROWS) for first in range(0, count, _ROWS)][::-1]


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    g, u = _parts(gate, up)
    y = torch.empty(g.shape, dtype=gate.dtype, device=gate.device)
    for some in _blocks(len(g)):
        wide = g[some].double()
        y[some] = (_sigmoid(wide) * wide * u[some].double()).to(y.dtype)
    return y.reshape(*gate.shape[:-1], g.shape[1])


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    g, u = _parts(gate, up)
    d, n = grad.reshape(g.shape), g.shape[1]
    width = n if up is not None else 2 * n
    of_gate = torch.empty((len(g), width), dtype=gate.dtype, device=gate.device)
    of_up = torch.empty_like(of_gate) if up is not None else of_gate[:, n:]
    for some in _blocks(len(g)):
        wide, way = g[some].double(), d[some].double()
        s = _sigmoid(wide)
        of_gate[some, :n] = (way * u[some].double() * (s + wide * s * _sigmoid(-wide))).to(
            gate.dtype
        )
        of_up[some] = (way * wide * s).to(gate.dtype)
    first = of_gate.reshape(gate.shape)
    return first, of_up.reshape(gate.shape) if up is not None else gate.new_empty(0)
