"""gelu_gate in Triton: a program takes a part of one row; every byte moves once.

Forward reads gate and up and writes y: memory-bound, 3 M N elements. Backward computes the GELU
again rather than reading it: it reads grad, gate and up and writes both gradients, 5 M N elements.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration

_DEFAULT = {"BLOCK": 2048, "num_warps": 4}

_SLOPE = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi)
_CUBE = tl.constexpr(0.044715)


@triton.jit
def _tile(N, BLOCK: tl.constexpr):
    """This program's row, its columns and which of them exist."""
    parts = tl.cdiv(N, BLOCK)
    row = (tl.program_id(0) // parts).to(tl.int64)
    columns = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    return row, columns, columns < N


@triton.jit
def _forward(
    gate_ptr, up_ptr, y_ptr,
    N, gate_stride, up_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, columns, inside = _tile(N, BLOCK)
    gate = tl.load(gate_ptr + row * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, inside, 0.0).to(tl.float32)
    s = tl.sigmoid(_SLOPE * (gate + _CUBE * gate * gate * gate))
    tl.store(y_ptr + row * N + columns, gate * s * up, inside)


@triton.jit
def _gradient(
    grad_ptr, gate_ptr, up_ptr, grad_gate_ptr, grad_up_ptr,
    N, grad_stride, gate_stride, up_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, columns, inside = _tile(N, BLOCK)
    grad = tl.load(grad_ptr + row * grad_stride + columns, inside, 0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + columns, inside, 0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + columns, inside, 0.0).to(tl.float32)
    s = tl.sigmoid(_SLOPE * (gate + _CUBE * gate * gate * gate))
    tails = s * (1.0 - s)
    slope = _SLOPE * (1.0 + 3.0 * _CUBE * gate * gate)
    # where the tails are zero, the slope may be inf, and inf * 0 would be NaN
    curve = tl.where(tails > 0.0, gate * slope * tails, 0.0)
    out = row * N + columns
    tl.store(grad_gate_ptr + out, grad * up * (s + curve), inside)
    tl.store(grad_up_ptr + out, grad * gate * s, inside)


def forward(gate: Tensor, up: Tensor) -> Tensor:
    """As op.gelu_gate."""
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if not y.numel():
        return y
    gates, ups = as_rows(gate), as_rows(up)
    m, n = gates.shape
    options, programs = _launch(m, n, "forward")
    _forward[(programs,)](gates, ups, y, n, gates.stride(0), ups.stride(0), **options)
    return y


def gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """As op's gelu_gate_gradient."""
    grad_gate, grad_up = (
        torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2)
    )
    if not gate.numel():
        return grad_gate, grad_up
    grads, gates, ups = as_rows(grad), as_rows(gate), as_rows(up)
    m, n = gates.shape
    options, programs = _launch(m, n, "backward")
    _gradient[(programs,)](
        grads, gates, ups, grad_gate, grad_up,
        n, grads.stride(0), gates.stride(0), ups.stride(0),
        **options,
    )  # fmt: skip
    return grad_gate, grad_up


def _launch(m, n, direction):
    """The options of a launch (no wider than a row) and its number of programs."""
    options = dict(configuration("gelu_gate", "triton", {"M": m, "N": n}, _DEFAULT, direction))
    options["BLOCK"] = min(options["BLOCK"], triton.next_power_of_2(n))
    return options, m * triton.cdiv(n, options["BLOCK"])
