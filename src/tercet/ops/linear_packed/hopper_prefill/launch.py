"""linear_packed for many tokens on Hopper, int8 activations: kernel.cuh.

Its `product` takes floats too, for hopper_prefill_float.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import as_rows, multiprocessors
from tercet.ops.linear_packed.arguments import FLOAT_ELEMENTS
from tercet.ops.linear_packed.hopper_prefill.plan import SCALED, Plan, best_plan
from tercet.packed_weight.call import PackedCall
from tercet.packed_weight.cpu.native import NUMBERS, number, pointer
from tercet.packed_weight.triton.quantize_rows import quantize_rows

_SOURCE = Path(__file__).parent / "kernel.cu"
# enumerators of tile_shape.cuh
_X = {
    torch.int8: "INT8",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.float8_e4m3fn: "E4M3",
}
_CODES = {"fp8_e4m3": "E4M3", "fp8_e5m2": "E5M2"}
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, its function's arguments declared."""
    library.tercet_linear_prefill.argtypes = (
        *(_I32, *(_I32,) * 5, _P, _I64, _P, _I64, _P, _P, _P, _I32, _P, _I32, _P, _P, _I32),
        *(_I32, _I32, _I32, _I32, _I32, _I32, _I32, _I32, _P, _P, _P),
    )
    return library


def build_of(codes: int | str, x_dtype: torch.dtype = torch.int8, *, scaled: bool = False) -> Build:
    """What is compiled for such codes (bits of integers, or fp8_e4m3 or fp8_e5m2) and x.

    scaled: whether codes of 2 or 4 bits are multiplied by the scales of their groups, float16 x.
    """
    kind = _CODES[codes] if isinstance(codes, str) else codes
    return Build(
        _SOURCE, {"TERCET_X": "SCALED_FLOAT16" if scaled else _X[x_dtype], "TERCET_CODES": kind}
    )


BUILDS = tuple(build_of(bits) for bits in (2, 4, 8))


@cache
def library_of(
    codes: int | str, x_dtype: torch.dtype = torch.int8, *, scaled: bool = False
) -> ctypes.CDLL:
    """The library of `build_of`. BuildError where it cannot be built."""
    return declare(build_of(codes, x_dtype, scaled=scaled).load())


def build() -> None:
    """Builds the library of 2-bit codes; others follow when a weight needs them.

    Raises:
        BuildError: where it cannot be built.
    """
    library_of(2)


def forward(call: PackedCall, *, scaled: bool = False) -> Tensor:
    """As op.linear_packed, on a weight in fragments; `scaled` as `product` takes it."""
    x, weight, bias, x_scale = call.x, call.weight, call.bias, call.x_scale
    if x_scale is None and call.activation != "none":
        x, x_scale, _ = quantize_rows(x, call.activation)
    layout = weight.sizes
    y = product(
        as_rows(x),
        x_scale.reshape(-1).contiguous() if x_scale is not None else None,
        weight.codes,
        weight.scale,
        bits=layout.bits,
        element=layout.element.name,
        group=layout.group if layout.groups > 1 else 0,
        scaled=scaled,
        rows=weight.shape[0],
        dtype=call.out_dtype,
        bias=bias.contiguous() if bias is not None else None,
        residual=call.residual.contiguous() if call.residual is not None else None,
        prefetch_weights=torch.cuda.is_current_stream_capturing(),
    )
    return y.view(*x.shape[:-1], weight.shape[0])


def product(
    x: Tensor,
    x_scale: Tensor | None,
    codes: Tensor,
    w_scale: Tensor,
    *,
    bits: int,
    element: str = "",
    group: int = 0,
    scaled: bool = False,
    rows: int,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    prefetch_weights: bool = False,
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
        scaled: whether codes of 2 and 4 bits are multiplied by float16 scales of groups before the
            product with float16 x, where else sums of groups are: ternary ones exactly, others
            rounded to float16. bfloat16 x becomes float16 times a power of two a row first
            (to_float16/bfloat16.cuh).
        rows: N.
        dtype: of y: float32, float16 or bfloat16.
        bias: [N] or None.
        residual: [M, N] in dtype, contiguous, or None.
        prefetch_weights: with programmatic dependent launch, codes and scales of groups may be
            read before the previous kernel has ended: true in a CUDA graph, where they are
            constants. They are where two such kernels fit at once; elsewhere it took up to a tenth
            longer.
        plan: None takes the one expected to be fastest.
        library: None builds it.
    """
    (m, k), size = x.shape, x.element_size()
    narrows = scaled and x.dtype == torch.bfloat16
    if not narrows and (x.stride(0) * size % 16 or x.data_ptr() % 16):
        wide = x.new_empty(m, -(-k // 16) * 16)
        wide[:, :k] = x
        x = wide
    y = torch.empty((m, rows), dtype=dtype, device=x.device)
    if not y.numel():
        return y
    kind = SCALED if scaled else str(x.dtype)[6:]
    processors = multiprocessors(x.device)
    plan = plan or best_plan(m, rows, k, bits, group, processors, kind)
    partial_sums = arrivals = None
    if plan.tiles > plan.data_parallel_tiles:
        work = torch.empty(plan.partial_sums + plan.arrivals, dtype=torch.int32, device=x.device)
        partial_sums, arrivals = work.data_ptr(), work[plan.partial_sums :].data_ptr()
    kinds = element if element in FLOAT_ELEMENTS else bits
    library = library or library_of(kinds, x.dtype, scaled=scaled)
    from_x: tuple[int | None, int] = (None, 0)
    multiplied = x.data_ptr(), x.stride(0) * size, pointer(x_scale)
    if narrows:
        from_x, pitch = (x.data_ptr(), x.stride(0)), -(-k // 8) * 8
        # float16 rows, and behind them a float32 for each
        made = torch.empty(m * (pitch + 2), dtype=torch.float16, device=x.device)
        multiplied = made.data_ptr(), pitch * 2, made.data_ptr() + m * pitch * 2
    status = library.tercet_linear_prefill(
        group, *plan.tile.parameters, *from_x, *multiplied, codes.data_ptr(),
        w_scale.data_ptr(), NUMBERS[w_scale.dtype],
        pointer(bias),
        number(bias),
        pointer(residual),
        y.data_ptr(), NUMBERS[dtype], m, rows, k, plan.clusters,
        plan.data_parallel_tiles, plan.stream_k_stages, plan.swizzle,
        prefetch_weights and 2 * plan.blocks <= processors, partial_sums, arrivals, stream(),
    )  # fmt: skip
    check_launch(status, "linear_packed")
    return y
