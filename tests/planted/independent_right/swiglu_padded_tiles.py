"""swiglu in plain torch, right, in another way; written blind."""

import torch
from torch import Tensor

OP = "swiglu"
UNUSUAL = (
    "Everything is copied into padded tiles of 512 and computed there in place; the sigmoid "
    "is taken of -|gate|, so that no exponential overflows."
)

_TILE = 512


def forward(gate: Tensor, up: Tensor | None) -> Tensor:
    """As op.swiglu."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    g, u = _tiles(gate), _tiles(up)
    positive, _ = _sigmoids(g)
    return _untiled(g.mul_(positive).mul_(u), gate.shape, gate.dtype)


def gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    """As op's swiglu_gradient."""
    first, second = gate.tensor_split(2, -1) if up is None else (gate, up)
    d, g, u = _tiles(grad), _tiles(first), _tiles(second)
    positive, negative = _sigmoids(g)
    of_up = (g * positive).mul_(d)
    of_gate = negative.mul_(g).add_(1.0).mul_(positive).mul_(u).mul_(d)
    if up is not None:
        return (
            _untiled(of_gate, gate.shape, gate.dtype),
            _untiled(of_up, gate.shape, gate.dtype),
        )
    whole = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    n = first.shape[-1]
    whole[..., :n] = _untiled(of_gate, first.shape, gate.dtype)
    whole[..., n:] = _untiled(of_up, first.shape, gate.dtype)
    return whole, gate.new_empty(0)


def _tiles(x: Tensor) -> Tensor:
    """A float32 copy of x in whole tiles, zeros behind it."""
    count = x.numel()
    tiles = torch.zeros((-(-count // _TILE), _TILE), dtype=torch.float32, device=x.device)
    tiles.view(-1)[:count].view(x.shape).copy_(x)
    return tiles


def _untiled(tiles: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    out = torch.empty(shape, dtype=dtype, device=tiles.device)
    return out.copy_(tiles.view(-1)[: shape.numel()].view(shape))


def _sigmoids(g: Tensor) -> tuple[Tensor, Tensor]:
    """sigmoid(g) and sigmoid(-g)."""
    small = g.abs().neg_().exp_()
    near, far = 1 / (1 + small), small / (1 + small)
    above = g >= 0
    return torch.where(above, near, far), torch.where(above, far, near)
