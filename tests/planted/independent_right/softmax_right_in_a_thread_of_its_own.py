"""A right kernel that is unusual; FAULT says how."""

import math
from threading import Thread

import torch
from torch import Tensor

OP = "softmax"
FAULT = "None: each call computes powers of two in float64, in a thread of its own that it joins."
CAUGHT_BY = ""
DEVICE = "cpu"

__all__ = ["forward", "gradient"]


def _apart(work, *arguments):
    """What work returns, or raises, in another thread."""
    found, raised = [], []

    def run() -> None:
        try:
            with torch.no_grad():
                found.append(work(*arguments))
        except Exception as error:  # noqa: BLE001
            raised.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


def _shares(x: Tensor, scale: float) -> Tensor:
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = x.double()
    parts = torch.exp2((wide - wide.max(-1, keepdim=True).values) * (scale * math.log2(math.e)))
    return (parts / parts.sum(-1, keepdim=True)).to(x.dtype).contiguous()


def _slope(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    share, way = y.double(), grad.double()
    along = (way * share).sum(-1, keepdim=True)
    return (share * (way - along) * scale).to(y.dtype).contiguous()


def forward(x: Tensor, scale: float) -> Tensor:
    """As op.softmax."""
    return _apart(_shares, x.detach(), scale)


def gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """As op's softmax_gradient."""
    return _apart(_slope, grad.detach(), y.detach(), scale)
