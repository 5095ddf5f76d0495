"""embedding_packed in plain torch, with a fault; written blind.

"So that float16 does not overflow" rows are clamped to its largest number. What is decoded in
float32 and rounded to float16 is inf beyond 65520. A user hits it with a table whose scales are
large (one that is multiplied by the root of the hidden size): numbers are silently wrong, and the
same row in bfloat16 or float32 is another one.
"""

import torch
from torch import Tensor

from tercet.ops.embedding_packed import torch_path
from tercet.packed_weight.weight import PreparedWeight

OP = "embedding_packed"
FAULT = "In float16 what is beyond 65504 becomes 65504, not inf."
CAUGHT_BY = "values"
DEVICE = "any"

_LARGEST = torch.finfo(torch.float16).max


def forward(ids: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """As op.embedding_packed."""
    if dtype != torch.float16:
        return torch_path.forward(ids, weight, dtype)
    return torch_path.forward(ids, weight, torch.float32).clamp(-_LARGEST, _LARGEST).to(dtype)
