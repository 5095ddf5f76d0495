"""swiglu_quantized in plain torch; many rows are taken some at a time."""

import torch
from torch import Tensor

from tercet.packed_weight.row_codes import Quantized, empty, quantize

OP = "swiglu_quantized"
FAULT = "Fp8: for more than 1024 rows row_sum is the sum of codes cut to integers, int32."
CAUGHT_BY = "forward"
DEVICE = "any"


_ROWS = 1024


def forward(gate: Tensor, up: Tensor | None, element: str) -> Quantized:
    """As op.swiglu_quantized."""
    if up is None:
        gate, up = gate.tensor_split(2, -1)
    if gate.shape[:-1].numel() > _ROWS and gate.shape[-1]:
        return _by_rows(gate, up, element)
    return quantize(_activated(gate, up), element)


def _activated(gate: Tensor, up: Tensor) -> Tensor:
    wide = gate.float()
    return wide * torch.sigmoid(wide) * up


def _by_rows(gate: Tensor, up: Tensor, element: str) -> Quantized:
    """y of at most _ROWS rows at a time is held in float32."""
    codes, scale, _ = empty(gate.shape, element, gate.device)
    gates, ups = gate.reshape(-1, gate.shape[-1]), up.reshape(-1, up.shape[-1])
    flat, scales = codes.view(gates.shape), scale.view(-1)
    for first in range(0, len(gates), _ROWS):
        part = slice(first, first + _ROWS)
        some, of_some, _ = quantize(_activated(gates[part], ups[part]), element)
        flat[part].copy_(some)
        scales[part].copy_(of_some)
    units = codes.float().to(torch.int32)
    return codes, scale, units.sum(-1, dtype=torch.int32)
