"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.tuned import configuration
from tercet.packed_weight.triton.decode_rows import decode_rows
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = "Int64 ids are narrowed to int32: an id from 2^32 on is some row's, not NaN."
DEVICE = "triton"
CAUGHT_BY = "forward"
__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in fragments; an id that is no row gives NaN."""
    sizes = {"T": ids.numel(), "N": weight.shape[0], "K": weight.shape[1]}
    options = configuration("embedding_packed", "triton", sizes, _default(ids.numel()))
    return decode_rows(weight, ids.int(), dtype, **options)


def _default(count: int) -> dict[str, int]:
    """Many programs for few tokens, long ones for many.

    Interpreted, an operation costs the same for a tile of any size.
    """
    if interpreting():
        return {"BT": 64, "BK": 256, "num_warps": 4}
    return {"BT": 1 if count <= 64 else 4, "BK": 512, "num_warps": 4}
