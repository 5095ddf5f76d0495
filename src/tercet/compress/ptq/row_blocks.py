"""Row blocks: rows of a large weight are quantized some at a time, to bound what work takes."""

from collections.abc import Callable

import torch
from torch import Tensor

from tercet.formats import PackedTensor, Scheme
from tercet.formats.chunks import chunk_rows

# where they go to a GPU's memory, its kernels are the longer
WEIGHTS_AT_ONCE = {"cpu": 1 << 23, "cuda": 1 << 26}


def quantize_by_rows(
    weight: Tensor, scheme: Scheme, quantize: Callable[[Tensor], PackedTensor]
) -> PackedTensor:
    """The weight [N, K] quantized, block of rows by block of rows where it is large.

    Args:
        weight: W [N, K].
        scheme: where rows share a scale, the weight is quantized whole.
        quantize: of some rows, which knows nothing of the others.
    """
    shape = (weight.shape[0], weight.shape[1])
    parts = chunk_rows(shape[0], max(WEIGHTS_AT_ONCE[weight.device.type] // max(shape[1], 1), 1))
    if scheme.scaling.block(shape)[0] > 1 or scheme.scaling.second_level or len(parts) < 2:
        return quantize(weight)
    made = [quantize(weight[rows]) for rows in parts]
    zeros = [part.zero for part in made if part.zero is not None]
    return PackedTensor(
        codes=torch.cat([part.codes for part in made]),
        scale=torch.cat([part.scale for part in made]),
        zero=torch.cat(zeros) if zeros else None,
        scheme=scheme,
        shape=shape,
    )
