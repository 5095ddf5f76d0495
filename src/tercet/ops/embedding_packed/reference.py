"""The meaning of embedding_packed, in float64."""

import torch
from torch import Tensor

from tercet.formats import PackedTensor


def reference(ids: Tensor, weight: PackedTensor, dtype: torch.dtype) -> Tensor:
    """W[ids] with W dequantized in float64; an id that is no row gives NaN."""
    table = weight.dequantize(torch.float64)
    known = (ids >= 0) & (ids < len(table))
    return torch.where(known[..., None], table[ids.long().where(known, 0)], torch.nan)


def magnitude(ids: Tensor, weight: PackedTensor, dtype: torch.dtype) -> Tensor:
    """|W[ids]|: nothing is summed, and (level - zero) is exact in float32."""
    return reference(ids, weight, dtype).abs()
