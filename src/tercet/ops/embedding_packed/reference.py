"""The meaning of embedding_packed, in float64."""

import torch
from torch import Tensor

from tercet.formats import PackedTensor


def reference(ids: Tensor, weight: PackedTensor, dtype: torch.dtype) -> Tensor:
    """W[ids] with W dequantized in float64."""
    return weight.dequantize(torch.float64)[ids.long()]


def magnitude(ids: Tensor, weight: PackedTensor, dtype: torch.dtype) -> Tensor:
    """|W[ids]|: nothing is summed, and (level - zero) is exact in float32."""
    return reference(ids, weight, dtype).abs()
