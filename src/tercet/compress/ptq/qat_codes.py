"""Codes: from a weight to what `fake_quantize` makes of it, and from that to a packed weight."""

import torch
from torch import Tensor

from tercet.compress.ptq.native.scale_search import mse
from tercet.errors import PlanError
from tercet.formats import Granularity, PackedTensor, Scheme, from_codes
from tercet.formats.fit import blocks_of

LEARNED = ("learned", "stretched")
# just above the smallest float16, which scales may be held in
SMALLEST_STEP = 1e-7
# half the range of the uniform quantizer of least error for a Gaussian, in units of its mean
# magnitude, by number of levels (Max 1960, Quantizing for minimum distortion)
_GAUSSIAN_RANGE = {4: 2.50, 8: 2.94, 16: 3.36}


def first_step(weight: Tensor, scheme: Scheme, method: str) -> Tensor | None:
    """Where a learned step begins: [R, C] float32, one a block; None where nothing is learned.

    The scale of least squared error, so that training begins at what rounding to nearest gives.

    Args:
        weight: W [N, K].
        scheme, method: of `fake_quantize`.
    """
    if method not in LEARNED:
        return None
    levels = len(scheme.element.levels)
    if method == "stretched" and levels % 2 == 0:
        blocks, mask = blocks_of(weight, scheme)
        step = blocks.abs().sum(-1) / mask.sum(-1).clamp_min(1) * _GAUSSIAN_RANGE[levels]
    else:
        scale = mse(weight, scheme)[0]
        step = scale * (levels / 2) if method == "stretched" else scale
    # a block of zeros has no scale, and a step must be positive to learn
    return step.float().clamp_min(SMALLEST_STEP)


def check_activation(name: str, scheme: Scheme, activation: str | None) -> None:
    """PlanError where products of codes are asked for under scales that vary along K."""
    if activation is not None and scheme.scaling.granularity not in (
        Granularity.CHANNEL,
        Granularity.TENSOR,
    ):
        raise PlanError(
            f"{name}: activation {activation!r} with format {scheme.name!r}: products of 8-bit "
            f"codes need one scale a channel or tensor: use {scheme.element.name}-channel, or "
            f"activation: null"
        )


def pack(codes: Tensor, scale: Tensor, scheme: Scheme, method: str) -> PackedTensor:
    """The packed weight of what `fake_quantize` returned; the same values, to the bit.

    Args:
        codes: [N, K] int8.
        scale: [R, C] float32.
        scheme, method: as they were given to it.
    """
    zero, levels = None, codes.float()
    if method == "stretched" and len(scheme.element.levels) % 2 == 0:
        # codes are 2 level + 1 with half the scale: value = (level - zero) scale, zero = -1/2
        levels, scale = (levels - 1) / 2, scale * 2
        zero_dtype = scheme.scaling.zero_torch_dtype
        assert zero_dtype is not None
        zero = torch.full(scale.shape, -0.5, dtype=zero_dtype, device=scale.device)
    stored = scale.to(scheme.scaling.torch_dtype)
    return from_codes(scheme.element.encode(levels), scheme, stored, zero)
