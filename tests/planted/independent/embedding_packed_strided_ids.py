"""embedding_packed in Triton, with the launcher of decode_rows folded in."""

import torch
import triton
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.tuned import configuration
from tercet.packed_weight.triton.decode_rows import _decode_rows
from tercet.packed_weight.triton.fragment_levels import KINDS
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = (
    "Ids with one axis are not made contiguous: of ids that lie apart (ids[::2], a column of "
    "a batch) the elements in between are read."
)
CAUGHT_BY = "forward"
DEVICE = "any"


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed, on a weight in fragments; an id that is no row gives NaN."""
    rows, columns = weight.shape
    sizes = {"T": ids.numel(), "N": rows, "K": columns}
    options = dict(configuration("embedding_packed", "triton", sizes, _default(ids.numel())))
    y = torch.empty((*ids.shape, columns), dtype=dtype, device=weight.codes.device)
    if not y.numel():
        return y
    layout, count = weight.sizes, ids.numel()
    # a list of ids is read as it lies
    flat = ids if ids.dim() == 1 else ids.contiguous()
    grid = (triton.cdiv(count, options["BT"]), triton.cdiv(columns, options["BK"]))
    _decode_rows[grid](
        flat, weight.codes, weight.scale, weight.zero, y, 0,
        count, rows, columns, weight.codes.shape[1], layout.groups, layout.group,
        BITS=layout.bits, KIND=KINDS.get(layout.element.name, 0), HAS_IDS=True,
        HAS_ZERO=weight.zero is not None, **options,
    )  # fmt: skip
    return y


def _default(count: int) -> dict[str, int]:
    """Interpreted, an operation costs the same for a tile of any size."""
    if interpreting():
        return {"BT": 64, "BK": 256, "num_warps": 4}
    return {"BT": 1 if count <= 64 else 4, "BK": 512, "num_warps": 4}
