"""linear_qat with products by `kernel/device/codes_product.py`; what feeds them is triton.py's."""

import torch
from torch import Tensor

from tercet.kernel.device.codes_product import CONFIGURATION, codes_product, supports_tma
from tercet.kernel.tuned import Direction, configuration
from tercet.ops.linear_qat import triton
from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.ops.linear_qat.codes_matrix import transpose


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    return triton.forward_by(product, call)


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    return triton.gradient_by(product, triton.coded, transpose, call)


def product(
    a: Tensor,
    b: Tensor,
    row: Tensor,
    column: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    direction: Direction,
) -> Tensor:
    """As triton.product, which computes what TMA does not take."""
    if not (supports_tma(a) and supports_tma(b)):
        return triton.product(a, b, row, column, bias, dtype, direction)
    (m, k), n = a.shape, b.shape[0]
    out = torch.empty((m, n), dtype=dtype, device=a.device)
    sizes = {"M": m, "N": n, "K": k}
    chosen = dict(configuration("linear_qat", "gluon", sizes, CONFIGURATION, direction))
    codes_product(
        a,
        b,
        row.reshape(-1).contiguous(),
        None if column is None else column.contiguous(),
        None if bias is None else bias.contiguous(),
        out,
        chosen,
    )
    return out
