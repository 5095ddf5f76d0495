"""Many weights quantized by one launch, to the bit as `fake_quantize` does each."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tercet.formats.scaling import Granularity
from tercet.ops.fake_quantize.rule import rule_of

if TYPE_CHECKING:
    from tercet.ops.fake_quantize.weights_codes import Quantized

MOST_TOGETHER = 128


def fits_together(weight: Tensor, scheme: str, method: str) -> bool:
    """Whether `quantize_together` takes it: on a GPU, its scales one a row."""
    rule = rule_of(scheme, method)
    if rule.shift or rule.scheme.scaling.granularity is not Granularity.CHANNEL:
        return False
    # a graph that is recorded would read the table of a launch again, when it is no longer there
    if not weight.is_cuda or torch.cuda.is_current_stream_capturing():
        return False
    from tercet.ops.fake_quantize import weights_codes

    return weights_codes.fits(weight)


def quantize_together(
    weights: list[Tensor],
    steps: list[Tensor] | None = None,
    *,
    scheme: str,
    method: str,
    bits: int = 0,
    before: list[Tensor] | None = None,
) -> "Quantized":
    """Codes, scales and packed codes of weights [N, K] of one K and dtype, and how many changed.

    Args:
        weights: at most MOST_TOGETHER, each of which fits.
        steps: of each, [N, 1] float32, where they are learned.
        scheme, method: of `fake_quantize`.
        bits: of a code where it is packed, 2, 4 or 8, as fields in two's complement, the first of a
            byte lowest; 0 to pack none.
        before: the last codes of each [N, K] int8, to count those that changed; None to count none.
    """
    from tercet.ops.fake_quantize import weights_codes

    rule = rule_of(scheme, method)
    assert (steps is not None) == rule.learned, "a learned method has steps, the others none"
    numbers = weights_codes.Numbers(
        mean=rule.mean,
        learned=rule.learned,
        divisor=rule.divisor,
        dtype=rule.dtype,
        lowest=rule.lowest,
        highest=rule.highest,
    )
    return weights_codes.quantize(weights, numbers, bits, before, steps, MOST_TOGETHER)
