"""A right kernel; UNUSUAL says how it is unusual."""

import torch
from torch import Tensor

from tercet.ops.embedding_packed.check import out_of_range
from tercet.packed_weight.weight import PreparedWeight, decode_blocks

OP = "embedding_packed"
UNUSUAL = (
    "Decodes every block that is named once, however often its rows are, and gathers by a "
    "two-step index."
)
DEVICE = "any"
__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    rows, columns = weight.shape
    flat = ids.reshape(-1).to(torch.int64)
    wrong = ((flat < 0) | (flat >= rows)).nonzero()
    if len(wrong):
        raise out_of_range(int(flat[wrong[0]]), int(wrong[0]), rows)
    if not flat.numel() or not columns:
        return torch.empty((*ids.shape, columns), dtype=dtype, device=ids.device)
    blocks, inverse = torch.unique(torch.div(flat, 16, rounding_mode="floor"), return_inverse=True)
    table = decode_blocks(weight, blocks)
    found = table.index_select(0, inverse * 16 + flat % 16)
    return found.to(dtype).reshape(*ids.shape, columns).contiguous()
