"""linear_packed for few tokens on Hopper: CUDA C++ that keeps up with reading W (kernel.cuh)."""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.ops.linear_packed.arguments import FLOAT_ELEMENTS
from tercet.ops.linear_packed.hopper_decode.plan import (
    GROUPS,
    MOST_QUANTIZED,
    MOST_TOKENS,
    Plan,
    in_digits,
    needs_of,
    plan_for,
)
from tercet.ops.linear_packed.hopper_decode.task import Launch, Task
from tercet.packed_weight.call import PackedCall, apply_epilogue
from tercet.packed_weight.cpu.native import NUMBERS, pointer
from tercet.packed_weight.triton.quantize_rows import quantize_rows

_FP8 = torch.float8_e4m3fn
_TYPES = {**NUMBERS, torch.int8: 3, _FP8: 4}
_HALVES = (torch.bfloat16, torch.float16)
_STEP = 32
# tokens that every block quantizes for itself: more take longer than a kernel of their own
_QUANTIZED_INSIDE = 1
_ONE_GROUP = 30
_SOURCE = Path(__file__).parent / "kernel.cu"
_X = {torch.int8: "int8_t", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}
_W = {"fp8_e4m3": "__NV_E4M3", "fp8_e5m2": "__NV_E5M2"}
# by the type of the products, and the element of weights that are 8-bit floats; all instances in
# one library would take minutes to compile
_BUILDS = {(dtype, ""): Build(_SOURCE, {"TERCET_X": x}) for dtype, x in _X.items()} | {
    (dtype, element): Build(_SOURCE, {"TERCET_X": x, "TERCET_W": _W[element]})
    for dtype, x in _X.items()
    for element in FLOAT_ELEMENTS
    if dtype != torch.int8
}
BUILDS = tuple(_BUILDS.values())


def build_of(x_dtype: torch.dtype, element: str = "") -> Build:
    """What is compiled for such products; arguments as `library`."""
    return _BUILDS[x_dtype, element]


@cache
def library(x_dtype: torch.dtype, element: str = "") -> ctypes.CDLL:
    """The library for products in int8, bfloat16 or float16; BuildError where there is none.

    element: "fp8_e4m3" or "fp8_e5m2" for such weights; "" is for integers.
    """
    found = build_of(x_dtype, element).load()
    found.tercet_decode.argtypes = (
        ctypes.POINTER(Task), ctypes.POINTER(Launch), ctypes.c_void_p,
    )  # fmt: skip
    return found


def build() -> None:
    """Builds the int8 library; the others at their first call. BuildError where it cannot."""
    library(torch.int8)


def forward(call: PackedCall) -> Tensor:
    """As op.linear_packed, for up to 16 tokens, on a weight in fragments."""
    x, weight, bias, x_scale = call.x, call.weight, call.bias, call.x_scale
    rows, columns = weight.shape
    y = torch.empty((*x.shape[:-1], rows), dtype=call.out_dtype, device=x.device)
    if not y.numel() or not columns:
        return apply_epilogue(y.float().zero_(), None, bias, call.residual, call.out_dtype)
    layout = weight.sizes
    few = y.numel() <= _QUANTIZED_INSIDE * rows
    inside = few and call.activation == "int8" and layout.element.integer and x.dtype in _HALVES
    if call.activation != "none" and x_scale is None and not inside:
        x, x_scale, _ = quantize_rows(x, call.activation)
    product(
        as_rows(x),
        x_scale.flatten().contiguous() if x_scale is not None else None,
        weight.codes,
        weight.scale,
        as_rows(y),
        bits=layout.bits,
        element=layout.element.name,
        columns=columns,
        group=layout.group,
        zero=weight.zero,
        bias=bias.contiguous() if bias is not None else None,
        residual=as_rows(call.residual) if call.residual is not None else None,
        quantize=inside and x_scale is None,
        # in a graph weights are constants, so they may be read before the previous kernel has ended
        pdl=torch.cuda.is_current_stream_capturing(),
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
    pdl: bool = False,
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
        zero: None, or of scale's shape, float32, float16 or bfloat16.
        bias: [N], any float.
        residual: [M, N] with unit stride along N, any float.
        quantize: make int8 codes of x, row by row, as packed_weight/row_codes.py.
        pdl: programmatic dependent launch: starts before the previous kernel ends, reads codes and
            scales at once, and x, bias and residual after that end. The previous kernel must not
            write the weight.
        plan: how to cut it up; None chooses.
        digits: multiply one or two tokens of floats as int8 digits, where there is no zero point;
            None chooses.

    Raises:
        UnsupportedError: for more tokens, other groups, or another x to be quantized.
    """
    m, n = y.shape
    row_blocks, units = codes.shape[:2]
    floats = element if element in FLOAT_ELEMENTS else ""
    kind = torch.int8 if quantize else _kind(x.dtype, floats)
    task, launch = _prepare_launch(
        _Sizes(
            m=m,
            n=n,
            k=columns,
            row_blocks=row_blocks,
            units=units,
            bits=bits,
            groups=scale.shape[1],
            group=group,
            zeros=zero is not None,
            floats=bool(floats),
            x_dtype=x.dtype,
            kind=kind,
            quantize=quantize,
            # TMA copies 16 bytes at a time, as they are
            sent=x.dtype == kind == torch.int8 and not (x.data_ptr() | x.stride(0) | columns) % 16,
            processors=multiprocessors(x.device),
            plan=plan,
            digits=digits,
        )
    )
    task = Task.from_buffer_copy(task)
    task.codes, task.scale = codes.data_ptr(), scale.data_ptr()
    task.x, task.x_scale, task.x_pitch = x.data_ptr(), pointer(x_scale), x.stride(0)
    task.y, task.y_type, task.scale_type = y.data_ptr(), _TYPES[y.dtype], _TYPES[scale.dtype]
    if zero is not None:
        task.zero, task.zero_type = zero.data_ptr(), _TYPES[zero.dtype]
    if bias is not None:
        task.bias, task.bias_type = bias.data_ptr(), NUMBERS[bias.dtype]
    if residual is not None:
        task.residual, task.residual_pitch = residual.data_ptr(), residual.stride(0)
        task.residual_type = NUMBERS[residual.dtype]
    task.pdl = pdl
    status = library(kind, floats).tercet_decode(ctypes.byref(task), ctypes.byref(launch), stream())
    check_launch(status, "decode")


class _Sizes(NamedTuple):
    """What of a product decides its plan: no addresses. A tuple, whose hash is quick."""

    m: int
    n: int
    k: int
    row_blocks: int
    units: int
    bits: int
    groups: int
    group: int
    zeros: bool
    floats: bool
    x_dtype: torch.dtype
    kind: torch.dtype
    quantize: bool
    sent: bool
    processors: int
    plan: Plan | None
    digits: bool | None


@cache
def _prepare_launch(sizes: _Sizes) -> tuple[Task, Launch]:
    """A task without addresses, to be copied, and its launch, for all calls of these sizes."""
    m, groups, kind, bits = sizes.m, sizes.groups, sizes.kind, sizes.bits
    _check(m, groups, sizes.group, sizes.x_dtype if sizes.quantize else None)
    # one group that has a zero point is a group longer than any row
    steps = sizes.group // _STEP if groups > 1 else 2**_ONE_GROUP
    plain = kind == sizes.x_dtype != torch.int8 and not sizes.floats
    digits = sizes.digits
    if digits is None:
        digits = in_digits(m, sizes.row_blocks, sizes.processors)
    digits = digits and plain and not sizes.zeros
    needs = needs_of(
        m,
        bits,
        1 if digits else kind.itemsize,
        groups,
        steps,
        zeros=sizes.zeros,
        digits=digits,
    )
    chosen = sizes.plan or plan_for(
        m, sizes.row_blocks, sizes.units, needs, sizes.processors, sent=sizes.sent
    )
    multicast = chosen.multicast if sizes.sent else 0
    task = Task(
        m=m,
        n=sizes.n,
        k=sizes.k,
        units=sizes.units,
        groups=groups,
        group_steps_log2=steps.bit_length() - 1,
        x_type=_TYPES[sizes.x_dtype],
        **_shares(chosen, sizes.row_blocks, sizes.units),
        multicast=multicast,
        factor=2.0 ** -(8 - bits) if kind == torch.int8 or digits else 0.5 if bits == 2 else 1.0,
    )
    launch = Launch(
        bits=bits,
        clusters=chosen.clusters,
        cluster_size=chosen.cluster_size,
        warps_k=chosen.warps_k,
        warps_n=chosen.warps_n,
        multicast=multicast,
        digits=digits,
    )
    return task, launch


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
