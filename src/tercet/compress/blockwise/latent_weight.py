"""LatentWeight: a packed weight as real numbers that can be trained, and packed again.

With V [N, K] the latent levels, (r, c) the block of a weight, and lo, hi the element's range,

    W[i, j] = (clamp(round(V[i, j]), lo, hi) - z[r, c]) * s[r, c],    s = s0 * exp(u)

where s and z are rounded to their stored dtypes, so W is what the packed weight decodes to, to the
bit. Gradients pass the roundings straight through (arXiv:1308.3432), those of V only while V is
within the range, widened by half a level:

    dV = dW * s,    du = sum over the block of dW * W,    dz = -s * sum over the block of dW

Levels, and not weights, are what is trained: a step of the optimizer then means the same in each
block, and a change of the scale alone changes no level (in LSQ, where W / s is rounded, it does).
"""

from typing import Any, cast

import torch
from torch import Tensor

from tercet.compress.ptq.quadratic import SCALES_TO_REFIT
from tercet.formats import PackedTensor, from_codes
from tercet.formats.encode import effective_scale, round_scale, round_zero
from tercet.formats.fit import blocks_of, join_blocks


class LatentWeight:
    """The trained form of one packed weight W [N, K], in blocks [R, C, B] that share a scale.

    Args:
        packed: what to begin with; an element of integer levels.
        original: the weight [N, K] that it stands for, in the same basis. A latent level begins
            half-way between the packed level and the original weight, but within the cell that
            rounds to the packed level: what the algorithm made is where training begins, and what
            it rounded far moves first. None where it begins at the packed level.
        name: for messages.
        levels: whether levels are trained, and not scales and zero points alone.

    Attributes:
        latent: V [R, C, B], float32, a leaf; it requires gradients where levels are trained.
        log_scale: u [R, C], or None where the scales' dtype is too coarse to train them.
        zero: z [R, C] before it is rounded, or None where there are none or they are integers.
    """

    def __init__(
        self, packed: PackedTensor, original: Tensor | None, name: str, *, levels: bool = True
    ) -> None:
        self._name, self._packed = name, packed
        scheme, element = packed.scheme, packed.scheme.element
        self._range = (element.lowest, element.highest)
        self._first_scale = effective_scale(packed.scale, packed.second)
        self._first_zero = None if packed.zero is None else packed.zero.float()
        start = blocks_of(element.decode(packed.unpack()), scheme)[0]
        if original is not None:
            start = self._begin(start, blocks_of(original, scheme)[0])
        self.latent = start.requires_grad_(levels)
        self.log_scale: Tensor | None = None
        if scheme.scaling.dtype in SCALES_TO_REFIT and packed.second is None:
            self.log_scale = torch.zeros_like(self._first_scale).requires_grad_()
        self.zero: Tensor | None = None
        if self._first_zero is not None and scheme.scaling.zero != "int8":
            self.zero = self._first_zero.clone().requires_grad_()

    def _begin(self, levels: Tensor, original: Tensor) -> Tensor:
        scale = self._first_scale[..., None]
        place = torch.where(scale > 0, original / scale, 0.0)
        if self._first_zero is not None:
            place = place + self._first_zero[..., None]
        return levels + ((place - levels) * _SHARE).clamp_(-_CELL, _CELL)

    def relative(self) -> list[Tensor]:
        """u and z, where they are trained: what moves relative to what it begins with."""
        return [part for part in (self.log_scale, self.zero) if part is not None]

    def values(self) -> Tensor:
        """W [N, K], float32, with gradients."""
        blocks = cast(Tensor, cast(Any, _Decode).apply(self.latent, *self._grid(), *self._range))
        return join_blocks(blocks, self._packed.scheme, self._packed.shape)

    def pack(self) -> PackedTensor:
        """W as it is stored; it decodes to `values`."""
        scheme = self._packed.scheme
        scale, zero = self._packed.scale, self._packed.zero
        if self.log_scale is not None:
            scale = round_scale(self._real_scale().detach(), scheme, self._name)[0]
        if self.zero is not None:
            zero = round_zero(self.zero.detach(), scheme, self._name)
        levels = join_blocks(self.latent.detach(), scheme, self._packed.shape)
        return from_codes(scheme.element.encode(levels), scheme, scale, zero, self._packed.second)

    def _real_scale(self) -> Tensor:
        assert self.log_scale is not None
        return self._first_scale * self.log_scale.exp()

    def _grid(self) -> tuple[Tensor, Tensor | None]:
        scale, zero = self._first_scale, self._first_zero
        if self.log_scale is not None:
            scale = _straight_through(self._real_scale(), self._packed.scale.dtype)
        if self.zero is not None and self._packed.zero is not None:
            zero = _straight_through(self.zero, self._packed.zero.dtype)
        return scale[..., None], None if zero is None else zero[..., None]


# of the way to the original weight. On the first layers of SmolLM2-135M in ternary, all of it left
# many latents at borders, where the first steps of Adam flip them at random: 1.5 times GPTQ's error
_SHARE = 0.5
# most that a latent begins beside its level, in levels
_CELL = 0.25


def _straight_through(values: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = values.detach().to(dtype).float()
    return rounded + (values - values.detach())


class _Decode(torch.autograd.Function):
    """(clamp(round(V)) - z) * s; one pass over memory less, backwards, than torch's own record."""

    @staticmethod
    def forward(
        ctx: Any, latent: Tensor, scale: Tensor, zero: Tensor | None, low: float, high: float
    ) -> Tensor:
        levels = latent.round().clamp_(low, high)
        if zero is not None:
            levels -= zero
        inside = None
        if ctx.needs_input_grad[0]:
            inside = (latent >= low - 0.5) & (latent <= high + 0.5)
        ctx.save_for_backward(levels, scale, inside)
        ctx.with_zero = zero is not None
        return levels * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        levels, scale, inside = ctx.saved_tensors
        gradient = gradients[0]
        latent = None if inside is None else (gradient * scale).mul_(inside)
        by_scale = (gradient * levels).sum(-1, keepdim=True)
        by_zero = gradient.sum(-1, keepdim=True).mul_(scale).neg_() if ctx.with_zero else None
        return latent, by_scale, by_zero, None, None
