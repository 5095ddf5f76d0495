"""linear_packed for few tokens on Hopper: CUDA C++ that keeps up with reading W (decode.cuh)."""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.cuda import build_cuda, launched, stream
from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.native import NUMBERS, number, pointer
from tercet.kernel.packed_call import finished
from tercet.kernel.rows16 import layout_of
from tercet.ops.linear_packed.arguments import FLOAT_ELEMENTS
from tercet.ops.linear_packed.decode_plan import (
    GROUPS,
    MOST_QUANTIZED,
    MOST_TOKENS,
    Plan,
    in_digits,
    needs_of,
    plan_for,
)

_FP8 = torch.float8_e4m3fn
_TYPES = {**NUMBERS, torch.int8: 3, _FP8: 4}
_HALVES = (torch.bfloat16, torch.float16)
_STEP = 32
# tokens that every block quantizes for itself: more take longer than a kernel of their own
_QUANTIZED_INSIDE = 1
_ONE_GROUP = 30
# by the type of the products, and the element of weights that are 8-bit floats
LIBRARIES = {
    (dtype, element): Path(__file__).parent / f"decode_{'_'.join(filter(None, (name, element)))}.cu"
    for dtype, name in (
        (torch.int8, "int8"),
        (torch.bfloat16, "bfloat16"),
        (torch.float16, "float16"),
    )
    for element in ("", *FLOAT_ELEMENTS)
    if not element or dtype != torch.int8
}
# for cross-compilation: the folder has other implementations' files too
SOURCES = tuple(LIBRARIES.values())


class Places(ctypes.Structure):
    """Mirrors `struct Places` of decode_task.cuh; the launch fills it in."""

    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("x", "row_stride", "slots", "x_sums", "scales", "end")
    )


class Task(ctypes.Structure):
    """Mirrors `struct Task` of decode_task.cuh, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scale", "zero", "x", "x_scale", "bias")),
        *((name, ctypes.c_void_p) for name in ("residual", "y")),
        *((name, ctypes.c_int64) for name in ("x_pitch", "residual_pitch")),
        *((name, ctypes.c_int) for name in ("m", "n", "k", "units", "groups")),
        *((name, ctypes.c_int) for name in ("group_steps_log2", "scale_type", "x_type")),
        *((name, ctypes.c_int) for name in ("bias_type", "residual_type", "y_type")),
        *((name, ctypes.c_int) for name in ("warp_units", "warps_all")),
        *((name, ctypes.c_int) for name in ("rows_each", "rows_more", "rows_most")),
        ("rows_inverse", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("dependent", "sharing")),
        ("factor", ctypes.c_float),
        ("places", Places),
    )


class Launch(ctypes.Structure):
    """Mirrors `struct Launch` of decode_task.cuh."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("bits", "clusters", "ranks", "warps_k", "warps_n", "sharing", "digits")
    )


@cache
def library(x_dtype: torch.dtype, element: str = "") -> ctypes.CDLL:
    """The library for products in int8, bfloat16 or float16; BuildError where there is none.

    element: "fp8_e4m3" or "fp8_e5m2" for such weights; "" is for integers.
    """
    found = build_cuda(LIBRARIES[x_dtype, element])
    found.tercet_decode.argtypes = (
        ctypes.POINTER(Task), ctypes.POINTER(Launch), ctypes.c_void_p,
    )  # fmt: skip
    return found


def build() -> None:
    """Builds the int8 library; the others at their first call. BuildError where it cannot."""
    library(torch.int8)


def forward(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, x_scale: Tensor | None, x_sum: Tensor | None,
    scheme: str, rows: int, columns: int, activation: str, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """As op.linear_packed, for up to 16 tokens, on a weight in fragments."""
    del x_sum
    y = torch.empty((*x.shape[:-1], rows), dtype=out_dtype, device=x.device)
    if not y.numel() or not columns:
        return finished(y.float().zero_(), None, bias, residual, out_dtype)
    layout = layout_of(scheme, rows, columns)
    few = y.numel() <= _QUANTIZED_INSIDE * rows
    inside = few and activation == "int8" and layout.element.integer and x.dtype in _HALVES
    if activation != "none" and x_scale is None and not inside:
        x, x_scale, _ = quantize_rows(x, activation)
    product(
        as_rows(x),
        x_scale.reshape(-1).contiguous() if x_scale is not None else None,
        codes,
        scale,
        y.view(-1, rows),
        bits=layout.bits,
        element=layout.element.name,
        columns=columns,
        group=layout.group,
        zero=zero,
        bias=bias.contiguous() if bias is not None else None,
        residual=as_rows(residual) if residual is not None else None,
        quantize=inside and x_scale is None,
        # in a graph weights are constants, so they may be read before the kernel ahead has ended
        dependent=torch.cuda.is_current_stream_capturing(),
    )
    return y


def product(
    x: Tensor,
    x_scale: Tensor | None,
    codes: Tensor,
    scale: Tensor,
    y: Tensor,
    *,
    bits: int,
    element: str = "",
    columns: int,
    group: int,
    zero: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    quantize: bool = False,
    dependent: bool = False,
    plan: Plan | None = None,
    digits: bool | None = None,
) -> None:
    """y = x W^T * scales + bias + residual.

    Args:
        x: [M, K] with unit stride along K, M at most 16: int8 or float8_e4m3fn; or bfloat16 or
            float16, with `quantize` against integer codes and M at most 8.
        x_scale: float32 [M] of 8-bit x; else None.
        codes: int32 [ceil(N / 16), units, 32, 4], the layout "fragments".
        scale: [ceil(N / 16), G, 16], float32, float16 or bfloat16.
        y: [M, N], contiguous; written.
        bits: of a code, 2, 4 or 8. 2-bit codes against float x must be ternary.
        element: of the codes; all but fp8_e4m3 and fp8_e5m2 are taken as integers.
        columns: K.
        group: columns a scale; where there are several, 32 times a power of two.
        zero: None, or like scale.
        bias: [N], any float.
        residual: [M, N] with unit stride along N, any float.
        quantize: turn x into int8 codes, row by row, as kernel/device/row_codes.py.
        dependent: may start before the kernel ahead of it ends: it reads codes and scales at once,
            and x, bias and residual after that end. The kernel ahead must not write the weight.
        plan: how to cut it up; None chooses.
        digits: multiply one or two tokens of floats as int8 digits, where there is one scale a row
            and no zero point; None chooses.

    Raises:
        UnsupportedError: for more tokens, other groups, or another x to be quantized.
    """
    m, n = y.shape
    groups = scale.shape[1]
    _check(m, groups, group, x.dtype if quantize else None)
    # one group that has a zero point is a group longer than any row
    steps = group // _STEP if groups > 1 else 2**_ONE_GROUP
    floats = element if element in FLOAT_ELEMENTS else ""
    kind = torch.int8 if quantize else _kind(x.dtype, floats)
    row_blocks, units = codes.shape[:2]
    plain = kind == x.dtype != torch.int8 and not floats
    processors = multiprocessors(x.device)
    if digits is None:
        digits = in_digits(m, row_blocks, processors)
    digits = digits and plain and groups == 1 and zero is None
    needs = needs_of(
        m,
        bits,
        1 if digits else kind.itemsize,
        groups,
        steps,
        zeros=zero is not None,
        digits=digits,
    )
    # the copy engine takes pieces of 16 bytes, as they are
    sent = x.dtype == kind == torch.int8 and not (x.data_ptr() | x.stride(0) | columns) % 16
    chosen = plan or plan_for(m, row_blocks, units, needs, processors, sent=sent)
    task = Task(
        codes=codes.data_ptr(),
        scale=scale.data_ptr(),
        zero=pointer(zero),
        x=x.data_ptr(),
        x_scale=pointer(x_scale),
        bias=pointer(bias),
        residual=pointer(residual),
        y=y.data_ptr(),
        x_pitch=x.stride(0),
        residual_pitch=residual.stride(0) if residual is not None else 0,
        m=m,
        n=n,
        k=columns,
        units=units,
        groups=groups,
        group_steps_log2=steps.bit_length() - 1,
        scale_type=_TYPES[scale.dtype],
        x_type=_TYPES[x.dtype],
        bias_type=number(bias),
        residual_type=number(residual),
        y_type=_TYPES[y.dtype],
        **_shares(chosen, row_blocks, units),
        dependent=dependent,
        sharing=chosen.sharing if sent else 0,
        factor=2.0 ** -(8 - bits) if kind == torch.int8 or digits else 0.5 if bits == 2 else 1.0,
    )
    launch = Launch(
        bits=bits,
        clusters=chosen.clusters,
        ranks=chosen.ranks,
        warps_k=chosen.warps_k,
        warps_n=chosen.warps_n,
        sharing=chosen.sharing if sent else 0,
        digits=digits,
    )
    status = library(kind, floats).tercet_decode(ctypes.byref(task), ctypes.byref(launch), stream())
    launched(status, "decode")


def _check(m: int, groups: int, group: int, quantized: torch.dtype | None) -> None:
    """UnsupportedError as `product` says; `quantized` is the dtype of an x to be."""
    if m > MOST_TOKENS or (groups > 1 and group not in GROUPS):
        raise UnsupportedError(
            f"decode: {m} tokens, groups of {group}: allowed are up to {MOST_TOKENS} tokens, "
            f"and groups of {', '.join(map(str, GROUPS))}"
        )
    if quantized is not None and (quantized not in _HALVES or m > MOST_QUANTIZED):
        raise UnsupportedError(
            f"decode: {m} tokens of {quantized} to be quantized: allowed are up to "
            f"{MOST_QUANTIZED} of bfloat16 or float16; quantize them ahead and give codes"
        )


def _kind(x: torch.dtype, floats: str) -> torch.dtype:
    """What x is multiplied as: where x or W are 8-bit floats, float16, in which both are exact."""
    return torch.float16 if x == _FP8 or (floats and x == torch.int8) else x


def _shares(plan: Plan, row_blocks: int, units: int) -> dict[str, int]:
    """Of a warp and of a cluster, as Task has them."""
    each, most = plan.warp_units(units), -(-row_blocks // plan.clusters)
    return {
        "warp_units": each,
        "warps_all": -(-units // each),
        "rows_each": row_blocks // plan.clusters,
        "rows_more": row_blocks % plan.clusters,
        "rows_most": most,
        "rows_inverse": -(-(2**23) // most),
    }
