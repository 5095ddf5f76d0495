"""linear_qat with products by `kernel/device/codes_product.py`; what feeds them is triton.py's."""

from typing import Any

import torch
from torch import Tensor

from tercet.errors import BuildError
from tercet.kernel.device.codes_matrix import transpose
from tercet.kernel.device.codes_product import CONFIGURATION, can_be_copied, codes_product
from tercet.kernel.tuned import Direction, configuration
from tercet.ops.linear_qat import triton

_HOPPER = 9


def build() -> None:
    """BuildError on a newer GPU than Hopper: it has no `wgmma`."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == _HOPPER:
        return
    raise BuildError(
        f"linear_qat's gluon: its wgmma is of compute capability {_HOPPER}.0 alone, this GPU has "
        f"{torch.cuda.get_device_capability()}; triton serves it"
    )


def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    return triton.forward_by(product, *arguments)


def gradient(*arguments: Any) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    return triton.gradient_by(product, triton.coded, transpose, *arguments)


def product(
    a: Tensor,
    b: Tensor,
    row: Tensor,
    column: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    direction: Direction,
) -> Tensor:
    """As triton.product, which computes what the copy engine does not take."""
    if not (can_be_copied(a) and can_be_copied(b)):
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
