"""linear_qat in Triton: one product of codes, tiled for the tensor cores, and what feeds it.

Forward: x is quantized per token (read once, one byte an element written), then the product with
the codes of W; the sums never leave registers as integers. Backward: grad * scale is quantized per
token and multiplied with the transposed codes; the gradient of W is a float product by cuBLAS with
x^, or a product of codes, of grad * x_scale quantized per column and x's codes, both transposed:
8-bit tensor cores want both operands contiguous along the sum.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from tercet.kernel.interpreter.corrections import interpreting
from tercet.kernel.launch import as_rows
from tercet.kernel.tuned import configuration
from tercet.ops.linear_qat.arguments import QatCall, QatGradientCall
from tercet.ops.linear_qat.codes_matrix import transpose
from tercet.ops.linear_qat.scaled_codes import coded_columns, coded_rows
from tercet.ops.linear_qat.torch_path import float_product
from tercet.packed_weight.triton.quantize_rows import quantize_rows

Coded = tuple[Tensor, Tensor]

_TILES_ABOVE = 8
# masks along the sum, or addresses that are not aligned, take registers that a wide tile has not
_NARROW = {"BM": 64, "BN": 64, "BK": 64, "STAGES": 3, "num_warps": 4}


@triton.jit
def _corner(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, ABOVE: tl.constexpr):
    """First row and column of a tile, in columns of ABOVE: neighbours share what they read."""
    above, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    column = tile // (ABOVE * across)
    height = tl.minimum(above - column * ABOVE, ABOVE)
    within = tile % (ABOVE * across)
    return (column * ABOVE + within % height) * BM, within // height * BN


@triton.jit
def _product(
    a_ptr, b_ptr, row_ptr, column_ptr, bias_ptr, out_ptr,
    M, N, K, a_stride, b_stride,
    HAS_COLUMN: tl.constexpr, ONE_COLUMN: tl.constexpr, HAS_BIAS: tl.constexpr,
    WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ABOVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [M, N] = (a [M, K] b^T [K, N]) * column [N] * row [M] + bias [N]; a and b int8.

    Rows beyond the last read the last: no mask in the loop where K is WHOLE steps.
    """
    m, n = _corner(tl.program_id(0), M, N, BM, BN, ABOVE)
    m += tl.arange(0, BM)
    n += tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = a_ptr + tl.minimum(m, M - 1).to(tl.int64)[:, None] * a_stride + k[None, :]
    b_at = b_ptr + tl.minimum(n, N - 1).to(tl.int64)[:, None] * b_stride + k[None, :]
    total = tl.zeros((BM, BN), tl.int32)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        if WHOLE:
            a, b = tl.load(a_at), tl.load(b_at)
        else:
            inside = (first + k < K)[None, :]
            a, b = tl.load(a_at, inside, 0), tl.load(b_at, inside, 0)
        total = tl.dot(a, tl.trans(b), total, out_dtype=tl.int32)
        a_at += BK
        b_at += BK
    y = total.to(tl.float32)
    if HAS_COLUMN:
        y *= tl.load(column_ptr + (n * 0 if ONE_COLUMN else n), n < N, 0.0)[None, :]
    y *= tl.load(row_ptr + m, m < M, 0.0)[:, None]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out_ptr + at, y, (m < M)[:, None] & (n < N)[None, :])


def forward(call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat."""
    return forward_by(product, call)


def gradient(call: QatGradientCall) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient."""
    return gradient_by(product, coded, transpose, call)


def forward_by(run: Callable[..., Tensor], call: QatCall) -> tuple[Tensor, Tensor, Tensor]:
    """As op.linear_qat, with products by `run`, which takes what `product` takes."""
    x, codes, scale, x_codes, x_scale = call.x, call.codes, call.scale, call.x_codes, call.x_scale
    kept, kept_scale = codes.new_empty(0), scale.new_empty(0)
    if x_codes is None or x_scale is None:
        kept, kept_scale, _ = quantize_rows(as_rows(x), "int8")
        x_codes, x_scale = kept, kept_scale
    shape = (*x.shape[:-1], codes.shape[0])
    y = run(as_rows(x_codes), codes, x_scale, scale, call.bias, call.out_dtype, "forward")
    return y.reshape(shape), kept, kept_scale


def gradient_by(
    run: Callable[..., Tensor],
    code: Callable[..., tuple[Coded | None, Coded | None]],
    turn: Callable[[Tensor], Tensor],
    call: QatGradientCall,
) -> tuple[Tensor, Tensor]:
    """As op's linear_qat_gradient, with products by `run`, codes by `code`, transposed by `turn`.

    They take what `product`, `coded` and `transpose` take.
    """
    grad, x_dtype, weight_dtype = call.grad, call.x_dtype, call.weight_dtype
    grad_x = torch.empty(0, dtype=x_dtype or grad.dtype, device=grad.device)
    grad_weight = torch.empty(0, dtype=weight_dtype or grad.dtype, device=grad.device)
    grads, x_scale = as_rows(grad), call.x_scale.contiguous()
    by_column = weight_dtype is not None and call.weight_gradient == "int8"
    of_rows, of_columns = code(
        grads,
        call.scale if x_dtype is not None else None,
        x_scale if by_column else None,
        call.seed,
    )
    if of_rows is not None:
        codes_t = turn(call.codes) if call.codes_t is None else call.codes_t
        grad_x = run(of_rows[0], codes_t, of_rows[1], None, None, x_dtype, "backward")
    if of_columns is not None:
        assert call.seen is not None
        rounded, size = of_columns
        grad_weight = run(rounded, call.seen, size, None, None, weight_dtype, "backward")
    elif weight_dtype is not None:
        assert call.seen is not None
        grad_weight = float_product(grads, call.seen, weight_dtype)
    return grad_x, grad_weight


def coded(
    grads: Tensor, scale: Tensor | None, x_scale: Tensor | None, seed: Tensor | None
) -> tuple[Coded | None, Coded | None]:
    """Codes and scales of the rows of grads [M, N] * scale, and of the columns of grads * x_scale.

    Each None where its scale is; of the columns transposed, [N, M], at random with a seed.
    """
    return (
        None if scale is None else coded_rows(grads, scale),
        None if x_scale is None else coded_columns(grads, x_scale, seed),
    )


def product(
    a: Tensor,
    b: Tensor,
    row: Tensor,
    column: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    direction: str,
) -> Tensor:
    """(a [M, K] b^T [K, N]) * column [N] * row [M] + bias [N] in dtype; a and b int8."""
    (m, k), n = a.shape, b.shape[0]
    out = torch.empty((m, n), dtype=dtype, device=a.device)
    if not out.numel():
        return out
    a, b = as_rows(a), as_rows(b)
    sizes = {"M": m, "N": n, "K": k}
    options = dict(configuration("linear_qat", "triton", sizes, _default(), direction))
    aligned = a.stride(0) % 16 == 0 and b.stride(0) % 16 == 0
    if not (aligned and _whole_steps(options, k)) and not interpreting():
        options = dict(_NARROW)
    bm, bn, bk = (options[name] for name in ("BM", "BN", "BK"))
    _product[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](
        a, b, row.reshape(-1).contiguous(), column.contiguous() if column is not None else None,
        bias.contiguous() if bias is not None else None, out, m, n, k, a.stride(0), b.stride(0),
        HAS_COLUMN=column is not None, ONE_COLUMN=column is not None and column.numel() == 1,
        HAS_BIAS=bias is not None, WHOLE=k % bk == 0, ABOVE=_TILES_ABOVE, **options,
    )  # fmt: skip
    return out


def _whole_steps(options: dict[str, int], k: int) -> bool:
    """Shortens the steps so that they divide k; False where none of 32 columns or more does."""
    while options["BK"] > 32 and k % options["BK"]:
        options["BK"] //= 2
    return k % options["BK"] == 0


def _default() -> dict[str, int]:
    """Interpreted, an operation costs the same for a tile of any size."""
    if interpreting():
        return {"BM": 64, "BN": 128, "BK": 128, "STAGES": 2, "num_warps": 4}
    if torch.version.hip is not None:  # 64 KiB of shared memory
        return {"BM": 128, "BN": 128, "BK": 64, "STAGES": 2, "num_warps": 8}
    return {"BM": 128, "BN": 256, "BK": 128, "STAGES": 3, "num_warps": 8}
