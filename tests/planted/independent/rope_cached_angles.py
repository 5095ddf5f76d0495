"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

OP = "rope"
FAULT = (
    "Angles, widened and laid beside each other, are kept by address, version and shape: a "
    "new tensor at the address of a freed one (version 0 both), or one that was changed in "
    "inference mode, where nothing counts versions, is taken for the old one."
)
DEVICE = "any"
CAUGHT_BY = "stale"
__all__ = ["forward", "gradient"]

_ANGLES: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
_MOST = 8


def _key(x: Tensor) -> tuple[object, ...]:
    version = 0 if x.is_inference() else x._version
    return (x.data_ptr(), version, tuple(x.shape), x.stride(), x.dtype, x.device)


def _angles(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """float32, one axis for the heads; every layer of a step has the same ones."""
    key = (*_key(cos), *_key(sin))
    found = _ANGLES.get(key)
    if found is None:
        if len(_ANGLES) >= _MOST:
            _ANGLES.pop(next(iter(_ANGLES)))
        # copies: a cast of float32 would be a view
        with torch.inference_mode(mode=False):
            found = tuple(x.detach().to(torch.float32, copy=True).unsqueeze(-2) for x in (cos, sin))
        _ANGLES[key] = found
    return found


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op.rope."""
    c, s = _angles(cos, sin)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def gradient(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As op's rope_gradient: the rotation by the opposite angle."""
    c, s = _angles(cos, sin)
    return _turn(grad_q, c, -s, interleaved), _turn(grad_k, c, -s, interleaved)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half = cos.shape[-1]
    y = x.clone(memory_format=torch.contiguous_format)
    columns = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    first, second = (x[..., column].float() for column in columns)
    y[..., columns[0]] = first * cos - second * sin
    y[..., columns[1]] = second * cos + first * sin
    return y
