"""A planted fault; FAULT says which."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.ops.quantize_activation import torch_path

OP = "quantize_activation"
FAULT = "The scale comes from the first 64 columns of a row only."
CAUGHT_BY = "forward"
DEVICE = "any"


@triton.jit
def _kernel(x_ptr, absmax_ptr, K, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, columns < K, 0.0).to(tl.float32)
    tl.store(absmax_ptr + row, tl.max(tl.abs(x), 0))


def forward(x: Tensor, element: str) -> tuple[Tensor, Tensor, Tensor]:
    """As op.quantize_activation."""
    if element != "int8" or not x.numel() or not x.isfinite().all():
        return torch_path.forward(x, element)
    rows = as_rows(x)
    absmax = torch.empty(len(rows), dtype=torch.float32, device=x.device)
    _kernel[(len(rows),)](rows, absmax, rows.shape[1], rows.stride(0), BLOCK=64)
    scale = absmax / torch.full_like(absmax, 127.0)
    ratio = rows.float() / torch.where(scale > 0, scale, 1.0)[:, None]
    codes = ratio.round().clamp(-127, 127).to(torch.int8).reshape(x.shape)
    return codes, scale.reshape(x.shape[:-1]), codes.sum(-1, dtype=torch.int32)
