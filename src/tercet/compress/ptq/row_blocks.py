"""Row blocks: rows of a large weight are quantized some at a time, to bound what work takes."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tercet.formats import PackedTensor, Scheme
from tercet.formats.chunks import chunk_rows
from tercet.formats.packed import expected_parts

# where they go to a GPU's memory, its kernels are the longer
WEIGHTS_AT_ONCE = {"cpu": 1 << 23, "cuda": 1 << 26}


def quantize_by_rows(
    weight: Tensor,
    scheme: Scheme,
    quantize: Callable[[Tensor], PackedTensor],
    at_once: Mapping[str, int] = WEIGHTS_AT_ONCE,
) -> PackedTensor:
    """The weight [N, K] quantized, block of rows by block of rows where it is large.

    Args:
        weight: W [N, K].
        scheme: where rows share a scale, the weight is quantized whole.
        quantize: of some rows, which knows nothing of the others.
        at_once: weights of a block, by kind of device.
    """
    shape = (weight.shape[0], weight.shape[1])
    parts = chunk_rows(shape[0], max(at_once[weight.device.type] // max(shape[1], 1), 1))
    if scheme.scaling.block(shape)[0] > 1 or scheme.scaling.second_level or len(parts) < 2:
        return quantize(weight)
    whole = {
        part: torch.empty(shape, dtype=dtype, device=weight.device)
        for part, (dtype, shape) in expected_parts(scheme, shape).items()
    }
    for rows in parts:
        made = quantize(weight[rows]).parts()
        for part, values in whole.items():
            values[rows] = made[part]
    return PackedTensor(
        codes=whole["packed"],
        scale=whole["scale"],
        zero=whole.get("zero"),
        scheme=scheme,
        shape=shape,
    )
