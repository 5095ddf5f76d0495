"""What a user would call instead of rope."""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from tercet.errors import UnsupportedError


def eager(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """As transformers' models write it: x * cos + rotate_half(x) * sin, in x's dtype."""
    if interleaved:
        wide = (cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1))
    else:
        wide = (torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    c, s = (part.unsqueeze(-2).to(q.dtype) for part in wide)
    return _turn(q, c, s, interleaved), _turn(k, c, s, interleaved)


def liger(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Liger-Kernel's. It rotates in place, so it is given copies: they are part of its time."""
    if interleaved:
        raise UnsupportedError(
            "Liger-Kernel's rope pairs column i with column i + R only: call it with "
            "interleaved=False"
        )
    function = import_module("liger_kernel.ops.rope").LigerRopeFunction
    apply: Callable[..., tuple[Tensor, Tensor]] = function.apply
    heads_first = (x.clone().transpose(1, 2) for x in (q, k))
    turned = apply(*heads_first, cos, sin, None, 1, 2 * cos.shape[-1])
    return turned[0].transpose(1, 2), turned[1].transpose(1, 2)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    if interleaved:
        rotated = torch.stack((-part[..., 1::2], part[..., 0::2]), -1).flatten(-2)
    else:
        rotated = torch.cat((-part[..., width // 2 :], part[..., : width // 2]), -1)
    turned = part * cos + rotated * sin
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
