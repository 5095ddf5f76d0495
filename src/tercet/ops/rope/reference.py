"""The meaning of rope, in float64 (Su et al. 2021, arXiv:2104.09864)."""

import torch
from torch import Tensor


def reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """(q, k) with each pair (x1, x2) turned to (x1 cos - x2 sin, x2 cos + x1 sin)."""
    c, s = cos.double().unsqueeze(-2), sin.double().unsqueeze(-2)
    return _turn(q.double(), c, s, -s, interleaved), _turn(k.double(), c, s, -s, interleaved)


def magnitude(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """The same with absolute values and a sum in place of the difference."""
    c, s = cos.double().abs().unsqueeze(-2), sin.double().abs().unsqueeze(-2)
    return (
        _turn(q.double().abs(), c, s, s, interleaved),
        _turn(k.double().abs(), c, s, s, interleaved),
    )


def _turn(x: Tensor, cos: Tensor, to_second: Tensor, to_first: Tensor, interleaved: bool) -> Tensor:
    """Pairs are columns (i, i + R), or (2 i, 2 i + 1) where interleaved; the rest stays."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    pair = (first * cos + second * to_first, second * cos + first * to_second)
    joined = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((joined, rest), -1)
