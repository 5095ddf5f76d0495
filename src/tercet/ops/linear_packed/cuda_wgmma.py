"""linear_packed for many tokens on Hopper, int8 activations: prefill_kernel.cuh.

Its `product` takes floats too, for cuda_wgmma_float.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.errors import BuildError
from tercet.kernel.cuda import build_cuda, launched, stream
from tercet.kernel.device.quantize_rows import quantize_rows
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.kernel.native import NUMBERS, number, pointer
from tercet.kernel.rows16 import layout_of
from tercet.ops.linear_packed.arguments import FLOAT_ELEMENTS
from tercet.ops.linear_packed.cuda_wgmma_plan import Plan, best_plan

SOURCES = ("prefill_2.cu", "prefill_4.cu", "prefill_8.cu")
_FOLDER = Path(__file__).parent
_HOPPER = (9, 0)
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, its function's arguments declared."""
    library.tercet_linear_prefill.argtypes = (
        *(_I32, _I32, _P, _I64, _P, _P, _P, _I32, _P, _I32, _P, _P, _I32),
        *(_I32, _I32, _I32, _I32, _I32, _I32, _I32, _I32, _P, _P, _P),
    )
    return library


@cache
def library_of(codes: int | str, x_dtype: torch.dtype = torch.int8) -> ctypes.CDLL:
    """The library of such codes (bits of integers, or fp8_e4m3 or fp8_e5m2) and x.

    BuildError where it cannot be built.
    """
    kind = "" if x_dtype == torch.int8 else f"_{str(x_dtype)[6:]}"
    return declare(build_cuda(_FOLDER / f"prefill_{codes}{kind}.cu"))


def build(x_dtype: torch.dtype = torch.int8) -> None:
    """Builds the library of 2-bit codes; others follow when a weight needs them.

    Raises:
        BuildError: where it cannot be built, and on a GPU other than Hopper's.
    """
    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if found != _HOPPER:
        raise BuildError(
            f"linear_packed's cuda_wgmma: its wgmma is of compute capability {_HOPPER} alone, this "
            f"GPU has {found}; triton serves it"
        )
    library_of(2, x_dtype)


def forward(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    residual: Tensor | None, x_scale: Tensor | None, x_sum: Tensor | None,
    scheme: str, rows: int, columns: int, activation: str, out_dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """As op.linear_packed, on a weight in fragments."""
    del zero, x_sum
    if x_scale is None and activation != "none":
        x, x_scale, _ = quantize_rows(x, activation)
    layout = layout_of(scheme, rows, columns)
    y = product(
        as_rows(x),
        x_scale.reshape(-1).contiguous() if x_scale is not None else None,
        codes,
        scale,
        bits=layout.bits,
        element=layout.element.name,
        group=layout.group if layout.groups > 1 else 0,
        rows=rows,
        dtype=out_dtype,
        bias=bias.contiguous() if bias is not None else None,
        residual=residual.contiguous() if residual is not None else None,
        early=torch.cuda.is_current_stream_capturing(),
    )
    return y.view(*x.shape[:-1], rows)


def product(
    x: Tensor,
    x_scale: Tensor | None,
    codes: Tensor,
    w_scale: Tensor,
    *,
    bits: int,
    element: str = "",
    group: int = 0,
    rows: int,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    early: bool = False,
    plan: Plan | None = None,
    library: ctypes.CDLL | None = None,
) -> Tensor:
    """y [M, N] = (x W^T) x_scale w_scale + bias + residual, one rounding to dtype.

    Args:
        x: int8, float16 or bfloat16 [M, K], of unit stride along K; copied where a row does not
            start at 16 bytes.
        x_scale: float32 [M]; None is of ones.
        codes: int32 [ceil(N / 16), units, 32, 4] in the layout `fragments`.
        w_scale: float32, float16 or bfloat16 [ceil(N / 16), G, 16]; G = 1, or ceil(K / group).
        bits: 2, 4 or 8 a code; with 16-bit x 2 bits are ternary, and 8 are floats.
        element: of the codes; all but fp8_e4m3 and fp8_e5m2 are taken as integers.
        group: 0, or 64 or 128 columns a scale.
        rows: N.
        dtype: of y: float32, float16 or bfloat16.
        bias: [N] or None.
        residual: [M, N] in dtype, contiguous, or None.
        early: codes and scales of groups may be read before the kernel ahead has ended: true in a
            CUDA graph, where they are constants. They are where two such kernels have room at once;
            elsewhere it took up to a tenth longer.
        plan: None takes the one expected to be fastest.
        library: None builds it.
    """
    (m, k), size = x.shape, x.element_size()
    if x.stride(0) * size % 16 or x.data_ptr() % 16:
        wide = x.new_empty(m, -(-k // 16) * 16)
        wide[:, :k] = x
        x = wide
    y = torch.empty((m, rows), dtype=dtype, device=x.device)
    if not y.numel():
        return y
    kind = str(x.dtype)[6:]
    processors = multiprocessors(x.device)
    plan = plan or best_plan(m, rows, k, bits, group, processors, kind)
    sums = arrivals = None
    if plan.tiles > plan.whole:
        work = torch.empty(plan.sums + plan.arrivals, dtype=torch.int32, device=x.device)
        sums, arrivals = work.data_ptr(), work[plan.sums :].data_ptr()
    library = library or library_of(element if element in FLOAT_ELEMENTS else bits, x.dtype)
    status = library.tercet_linear_prefill(
        group, plan.shape, x.data_ptr(), x.stride(0) * size,
        pointer(x_scale), codes.data_ptr(),
        w_scale.data_ptr(), NUMBERS[w_scale.dtype],
        pointer(bias),
        number(bias),
        pointer(residual),
        y.data_ptr(), NUMBERS[dtype], m, rows, k, plan.clusters, plan.whole, plan.part, plan.band,
        early and 2 * plan.blocks <= processors, sums, arrivals, stream(),
    )  # fmt: skip
    launched(status, "linear_packed")
    return y
