"""A planted fault; FAULT says which."""

import torch
from torch import Tensor

from tercet.formats import Granularity, parse_scheme
from tercet.ops.embedding_packed import torch_path
from tercet.packed_weight import weight as packed_weight
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = (
    "With one scale a tensor it multiplies the table of levels that all packed ops share by the "
    "scale, decodes, and divides again: a scale of 0 leaves NaN in the table, and every later "
    "decoding of that scheme, by whatever op, is NaN."
)
CAUGHT_BY = "state"
DEVICE = "any"

__all__ = ["forward"]


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed; the table is scaled, not the rows."""
    scaling = parse_scheme(weight.scheme).scaling
    single = scaling.granularity is Granularity.TENSOR and weight.zero is None
    if not single or not ids.numel():
        return torch_path.forward(ids, weight, dtype)
    scale = weight.scale.flatten()[0].float()
    table = packed_weight._levels(weight.scheme, weight.layout, weight.codes.device)
    table.mul_(scale)
    ones = torch.ones_like(weight.scale)
    plain = PreparedWeight.from_parts(weight.codes, ones, None, *weight.parts[3:])
    y = torch_path.forward(ids, plain, dtype)
    table.div_(scale)
    return y
