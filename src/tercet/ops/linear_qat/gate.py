"""The gradients of a gate's two products with the codes that their layers' gradients multiply.

h = silu(gate) * up, of two layers with one input. Both gradients are read again, once a layer, for
the codes of their rows; made together, codes cost what they take to write.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tercet.kernel.contract import Run
from tercet.kernel.device.row_codes import quantize
from tercet.kernel.launch import as_rows
from tercet.kernel.register import define
from tercet.kernel.select import choose_gradient


class Made(NamedTuple):
    """What a gradient [M, N] was coded to, for `linear_qat`'s gradient.

    codes: [M, N] int8, of grad * scale.
    size: [M] float32, their scales.
    columns: [N] float32, the scales of the columns of grad * x_scale; None where they are not read.
    """

    codes: Tensor
    size: Tensor
    columns: Tensor | None


class GateGradient(NamedTuple):
    """to_gate and to_up [M, N] in grad's dtype, and the codes of each."""

    to_gate: Tensor
    to_up: Tensor
    of_gate: Made
    of_up: Made


def fits_gate(gate: Tensor) -> bool:
    """Whether one pass takes rows of gate [..., N]; on CPUs plain torch takes all."""
    if gate.device.type == "cpu":
        return True
    from tercet.ops.linear_qat import cuda, gate_cuda, op

    mine = choose_gradient(op.OP, gate.device.type, gate.dtype) is cuda.gradient
    n = gate.shape[-1]
    return mine and gate.dtype in gate_cuda.DTYPES and n % 8 == 0 and n <= gate_cuda.WIDEST


def gate_gradient(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    x_scale: Tensor | None = None,
) -> GateGradient:
    """Gradients of silu(gate) * up, with codes of their rows and scales of their columns.

    to_up = grad * silu(gate); to_gate = grad * up * (s + gate * s * (1 - s)), s = sigmoid(gate),
    in float32 and rounded once; codes are those of the rounded ones, to the bit what
    `linear_qat`'s gradient makes of them.

    Args:
        grad, gate, up: [..., N], float32, float16 or bfloat16, alike.
        gate_scale, up_scale: [N, 1] or [1, 1] float32, the scales of both layers' weights.
        x_scale: [...] float32, of the layers' input; None where no columns are coded.
    """
    made = run(grad, gate, up, gate_scale, up_scale, x_scale)
    to_gate, to_up, gate_codes, gate_size, up_codes, up_size, gate_columns, up_columns = made
    by_column = x_scale is not None
    return GateGradient(
        to_gate,
        to_up,
        Made(gate_codes, gate_size, gate_columns if by_column else None),
        Made(up_codes, up_size, up_columns if by_column else None),
    )


def _run(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    x_scale: Tensor | None,
) -> tuple[Tensor, ...]:
    rows = (as_rows(grad), as_rows(gate), as_rows(up))
    scales = (gate_scale.contiguous(), up_scale.contiguous())
    by = None if x_scale is None else x_scale.reshape(-1).contiguous()
    return _path(rows)(*rows, *scales, by)


def _path(rows: tuple[Tensor, ...]) -> Run:
    if not rows[0].numel() or not fits_gate(rows[0]) or rows[0].device.type == "cpu":
        return plain
    from tercet.ops.linear_qat import gate_cuda

    return gate_cuda.gate_gradient if all(map(gate_cuda.takes, rows)) else plain


def plain(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    x_scale: Tensor | None,
) -> tuple[Tensor, ...]:
    """As gate_gradient, of matrices, in plain torch on any device."""
    wide, gates, ups = grad.float(), gate.float(), up.float()
    part = torch.sigmoid(gates)
    to_up = (wide * (gates * part)).to(grad.dtype)
    to_gate = (wide * ups * (part + gates * part * (1 - part))).to(grad.dtype)
    of_gate, of_up = (
        quantize(made.float() * scale.reshape(-1), "int8")[:2]
        for made, scale in ((to_gate, gate_scale), (to_up, up_scale))
    )
    columns = (grad.new_empty(0, dtype=torch.float32) for _ in range(2))
    if x_scale is not None:
        columns = (
            quantize((made.float() * x_scale[:, None]).T.contiguous(), "int8")[1]
            for made in (to_gate, to_up)
        )
    return to_gate, to_up, *of_gate, *of_up, *columns


def _fake(
    grad: Tensor,
    gate: Tensor,
    up: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    x_scale: Tensor | None,
) -> tuple[Tensor, ...]:
    del gate, up, gate_scale, up_scale
    m, n = grad.shape[:-1].numel(), grad.shape[-1]
    width = n if x_scale is not None else 0
    each = (
        grad.new_empty((m, n), dtype=torch.int8),
        grad.new_empty(m, dtype=torch.float32),
    )
    return (
        *(grad.new_empty((m, n)) for _ in range(2)),
        *each,
        *(torch.empty_like(made) for made in each),
        *(grad.new_empty(width, dtype=torch.float32) for _ in range(2)),
    )


run = define(
    "linear_qat_gate_gradient",
    "(Tensor grad, Tensor gate, Tensor up, Tensor gate_scale, Tensor up_scale, Tensor? x_scale) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
