"""linear_qat in CUDA C++ for Hopper: kernel.cuh, and gradient_codes.cu, which makes its operands.

What TMA or 16-byte accesses do not take is computed by triton.py.
"""

import ctypes
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.device.codes_product import supports_tma
from tercet.kernel.jit.cuda import Build, check_launch, stream
from tercet.kernel.launch import multiprocessors
from tercet.kernel.tuned import Direction
from tercet.ops.linear_qat import triton
from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.ops.linear_qat.codes_matrix import transpose
from tercet.ops.linear_qat.hopper.plan import launch_configuration
from tercet.ops.linear_qat.torch_path import float_product
from tercet.ops.linear_qat.triton import Coded
from tercet.packed_weight.cpu.native import NUMBERS, number, pointer

_PRODUCT = Build(Path(__file__).parent / "kernel.cu")
_CODES = Build(Path(__file__).parent / "gradient_codes.cu")
BUILDS = (_PRODUCT, _CODES)
_WIDEST = 16384
# row_codes: most on a multiprocessor, of rows up to so many columns more
_BLOCKS, _BLOCKS_OF_SHORT, _SHORT = 4, 16, 2048
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


@cache
def products() -> ctypes.CDLL:
    """The library of kernel.cu. BuildError where it cannot be built."""
    return declare_products(_PRODUCT.load())


@cache
def codings() -> ctypes.CDLL:
    """The library of gradient_codes.cu. BuildError where it cannot be built."""
    return declare_codings(_CODES.load())


def declare_products(library: ctypes.CDLL) -> ctypes.CDLL:
    """kernel.cu's library, its function's arguments declared."""
    library.tercet_codes_product.argtypes = (
        *(_P, _I64, _P, _I64, _P, _P, _I32, _P, _I32, _P, _I32, _I32, _I32, _I32, _I32, _I32, _P),
    )
    return library


def declare_codings(library: ctypes.CDLL) -> ctypes.CDLL:
    """gradient_codes.cu's library, its functions' arguments declared."""
    library.tercet_gradient_codes.argtypes = (
        *(_P, _I64, _I32, _I32, _I32, _P, _I32, _P, _P, _P, _P, _I32, _P, _P, _P, _P),
    )
    library.tercet_transposed_codes.argtypes = (_P, _I64, _P, _I32, _I32, _P)
    return library


def build() -> None:
    """Builds the libraries. BuildError where that fails."""
    products()
    codings()


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    return triton.forward_by(product, call)


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    grad, codes, scale, x_scale = call.grad, call.codes, call.scale, call.x_scale
    x_dtype, weight_dtype, seed, seen = call.x_dtype, call.weight_dtype, call.seed, call.seen
    by_column = weight_dtype is not None and call.weight_gradient == "int8"
    as_it_is = x_dtype is not None and call.codes_t is None
    if not (as_it_is and _common(grad, codes, scale, x_scale, seen)):
        return triton.gradient_by(product, coded, transpose_codes, call)
    (m, n), k, to = grad.shape, codes.shape[1], stream()
    most_blocks = _most_blocks(n, grad.device)
    # in one allocation, each at a multiple of 256 bytes: the host's time for ten is a product's
    sizes = [m * n, 4 * m, n * k]
    if by_column:
        sizes += [n * m, 4 * n, 4 * most_blocks * n]
    places = list(accumulate((-(-size // 256) * 256 for size in sizes), initial=0))
    room = codes.new_empty(places[-1])
    row, size, transposed_codes, column, column_size, tops = (
        room.data_ptr() + place for place in [*places[:-1], 0, 0, 0][:6]
    )
    _raise(
        codings().tercet_gradient_codes(
            grad.data_ptr(), grad.stride(0) * grad.element_size(), NUMBERS[grad.dtype], m, n,
            scale.data_ptr(), scale.numel() == 1, x_scale.data_ptr() if by_column else None, row,
            size, tops if by_column else None, most_blocks,
            pointer(seed), column if by_column else None, column_size if by_column else None, to,
        )
    )  # fmt: skip
    _raise(codings().tercet_transposed_codes(codes.data_ptr(), k, transposed_codes, n, k, to))
    grad_x = grad.new_empty((m, k), dtype=x_dtype)
    _multiply(row, transposed_codes, size, grad_x, n, to)
    if weight_dtype is None:
        return grad_x, grad.new_empty(0)
    assert seen is not None
    if not by_column:
        return grad_x, float_product(grad, seen, weight_dtype)
    grad_weight = grad.new_empty((n, k), dtype=weight_dtype)
    _multiply(column, seen.data_ptr(), column_size, grad_weight, m, to)
    return grad_x, grad_weight


def _common(
    grad: Tensor, codes: Tensor, scale: Tensor, x_scale: Tensor, seen: Tensor | None
) -> bool:
    """Whether all kernels of a gradient take their operands as they are."""
    (m, n), k = grad.shape, codes.shape[1]
    return (
        m * n * k > 0
        and not (m % 16 or n % 16 or k % 16)
        and n <= _WIDEST
        and grad.stride(1) == 1
        and grad.stride(0) * grad.element_size() % 16 == 0
        and grad.data_ptr() % 16 == 0
        and codes.data_ptr() % 16 == 0
        and codes.is_contiguous()
        and scale.is_contiguous()
        and x_scale.is_contiguous()
        and (seen is None or (seen.is_contiguous() and seen.data_ptr() % 16 == 0))
    )


def _most_blocks(n: int, device: torch.device) -> int:
    """How many blocks code rows at most, each with a largest of every column."""
    return (_BLOCKS if n > _SHORT else _BLOCKS_OF_SHORT) * multiprocessors(device)


def _multiply(a: int, b: int, row: int, out: Tensor, k: int, to: int) -> None:
    """out [M, N] = (a [M, K] b [N, K]^T) * row [M], of contiguous codes at addresses."""
    m, n = out.shape
    chosen = launch_configuration(m, n, k, out.device, "backward")
    _raise(
        products().tercet_codes_product(
            a, k, b, k, row, None, False, None, 0, out.data_ptr(), NUMBERS[out.dtype], m, n, k,
            chosen["CLUSTER"], chosen["SWIZZLE"], to,
        )
    )  # fmt: skip


def product(
    a: Tensor,
    b: Tensor,
    row: Tensor,
    column: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    direction: Direction,
) -> Tensor:
    """As triton.product."""
    if not (supports_tma(a) and supports_tma(b)):
        return triton.product(a, b, row, column, bias, dtype, direction)
    (m, k), n = a.shape, b.shape[0]
    out = a.new_empty((m, n), dtype=dtype)
    chosen = launch_configuration(m, n, k, a.device, direction)
    row = row.contiguous()
    column = None if column is None else column.contiguous()
    bias = None if bias is None else bias.contiguous()
    _raise(
        products().tercet_codes_product(
            a.data_ptr(), a.stride(0), b.data_ptr(), b.stride(0), row.data_ptr(),
            pointer(column), column is not None and column.numel() == 1, pointer(bias),
            number(bias),
            out.data_ptr(), NUMBERS[dtype], m, n, k, chosen["CLUSTER"], chosen["SWIZZLE"], stream(),
        )
    )  # fmt: skip
    return out


def coded(
    grads: Tensor, scale: Tensor | None, x_scale: Tensor | None, seed: Tensor | None
) -> tuple[Coded | None, Coded | None]:
    """As triton.coded; of both, the pass for the rows finds the columns' scales too."""
    (m, n), device = grads.shape, grads.device
    wide = grads.stride(0) * grads.element_size()
    fits = (
        grads.numel() > 0
        and n % 8 == 0
        and n <= _WIDEST
        and (x_scale is None or m % 16 == 0)
        and wide % 16 == 0
        and grads.data_ptr() % 16 == 0
    )
    if scale is None or not fits:
        return triton.coded(grads, scale, x_scale, seed)
    scale = scale.contiguous()
    codes = torch.empty((m, n), dtype=torch.int8, device=device)
    size = torch.empty(m, dtype=torch.float32, device=device)
    by_column = transposed_size = tops = None
    most_blocks = _most_blocks(n, device)
    if x_scale is not None:
        by_column = torch.empty((n, m), dtype=torch.int8, device=device)
        transposed_size = torch.empty(n, dtype=torch.float32, device=device)
        tops = torch.empty((most_blocks, n), dtype=torch.float32, device=device)
    _raise(
        codings().tercet_gradient_codes(
            grads.data_ptr(), wide, NUMBERS[grads.dtype], m, n, scale.data_ptr(),
            scale.numel() == 1, pointer(x_scale), codes.data_ptr(), size.data_ptr(),
            pointer(tops), most_blocks, pointer(seed), pointer(by_column),
            pointer(transposed_size), stream(),
        )
    )  # fmt: skip
    if by_column is None or transposed_size is None:
        return (codes, size), None
    return (codes, size), (by_column, transposed_size)


def transpose_codes(codes: Tensor) -> Tensor:
    """As codes_matrix.transpose."""
    rows, columns = codes.shape
    aligned = codes.data_ptr() % 8 == 0 and codes.stride(0) % 8 == 0 and codes.stride(1) == 1
    if not (codes.numel() and aligned and rows % 16 == 0 and columns % 8 == 0):
        return transpose(codes)
    out = torch.empty((columns, rows), dtype=torch.int8, device=codes.device)
    _raise(
        codings().tercet_transposed_codes(
            codes.data_ptr(), codes.stride(0), out.data_ptr(), rows, columns, stream()
        )
    )
    return out


def _raise(status: int) -> None:
    check_launch(status, "linear_qat")
