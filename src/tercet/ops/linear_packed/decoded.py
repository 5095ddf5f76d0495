"""linear_packed by decoding W, many rows at a time, for torch's product; reads fragments.

For float32, of which tensor cores keep too few bits: torch's product and the decoding of W together
take less time than a product in Triton, from one token on.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.tuned import configuration
from tercet.ops.linear_packed import torch_path
from tercet.packed_weight.call import PackedCall, apply_epilogue
from tercet.packed_weight.triton.decode_rows import decode_rows
from tercet.packed_weight.weight import PreparedWeight

# 256 MiB in float32
_WEIGHTS_AT_ONCE = 1 << 26


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, on a weight in fragments and x without quantization."""
    rows, columns = call.weight.shape
    x = call.x.reshape(call.x.shape[:-1].numel(), columns).float()
    y = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    for part, decoded in _parts(call.weight, len(x)):
        torch.matmul(x, decoded.T, out=y[:, part.start : part.stop])
    y = y.view(*call.x.shape[:-1], rows)
    return apply_epilogue(y, None, call.bias, call.residual, call.out_dtype)


def gradient(grad: Tensor, weight: PreparedWeight, dtype: torch.dtype) -> Tensor:
    """grad [..., N] W: the gradient with respect to x, summed in float32, in dtype."""
    if weight.layout != "fragments":
        return torch_path.gradient(grad, weight, dtype)
    rows, columns = weight.shape
    grad_y = grad.reshape(grad.shape[:-1].numel(), rows).float()
    total = torch.zeros((len(grad_y), columns), dtype=torch.float32, device=grad.device)
    for part, decoded in _parts(weight, len(grad_y)):
        total.addmm_(grad_y[:, part.start : part.stop], decoded)
    return total.to(dtype).reshape(*grad.shape[:-1], columns)


def _parts(weight: PreparedWeight, m: int) -> Iterator[tuple[range, Tensor]]:
    """Rows of W, float32 [n, K], with the range that they are of."""
    rows, columns = weight.shape
    sizes = {"M": m, "N": rows, "K": columns}
    options = configuration("linear_packed", "decoded", sizes, _default())
    step = max(_WEIGHTS_AT_ONCE // max(columns, 1), 1)
    for first in range(0, rows, step):
        part = range(first, min(first + step, rows))
        yield part, decode_rows(weight, part, torch.float32, **options)


def _default() -> dict[str, int]:
    """Interpreted, an operation costs the same for a tile of any size."""
    if interpreting():
        return {"BT": 64, "BK": 256, "num_warps": 4}
    return {"BT": 16, "BK": 128, "num_warps": 4}
