"""rms_norm_quantized: (x + residual) normalized and quantized per row, in one pass."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.contract import (
    Axis,
    Baseline,
    Cost,
    Implementation,
    Op,
    Requirement,
    TensorSpec,
    Tolerance,
)
from tercet.kernel.direct_call import direct_call
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.rms_norm_quantized.cases import CASES, inputs, shapes
from tercet.ops.rms_norm_quantized.reference import RELATIVE, magnitude, reference
from tercet.packed_weight.row_codes import Quantized, empty, row_codes

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TIE = "one code, and only where y is within float32's error of the boundary between two"


def rms_norm_quantized(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    element: str = "int8",
) -> Quantized | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Root-mean-square normalization (arXiv:1910.07467) whose output is quantized, row by row.

    total = x + residual; y = total / sqrt(mean(total^2) + eps) * weight; codes, scale and row_sum
    are quantize_activation's of y. Both total and y are used in float32: y is never rounded to x's
    dtype, so codes are nearer to it than those of a norm and a quantization apart.

    Args:
        x: [..., N], float32, float16 or bfloat16; strides as they come.
        weight: [N], of x's dtype or float32.
        residual: like x, or None.
        eps: added to the mean square.
        element: "int8" or "fp8_e4m3".

    Returns:
        codes [..., N], int8 or float8_e4m3fn; scale [...], float32; row_sum [...], int32 or (fp8)
        float32; with a residual also total [..., N] in x's dtype. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes, elements or devices that do not fit.
    """
    codes, scale, row_sum, total = _call(x, weight, residual, eps, element)
    return (codes, scale, row_sum) if residual is None else (codes, scale, row_sum, total)


def _check(x: Tensor, weight: Tensor, residual: Tensor | None, element: str) -> None:
    row_codes(element)
    if x.dtype not in _DTYPES or weight.dtype not in (x.dtype, torch.float32):
        raise UnsupportedError(
            f"rms_norm_quantized: x is {x.dtype}, weight {weight.dtype}: x may be float32, float16 "
            "or bfloat16, weight of x's dtype or float32"
        )
    if not x.dim() or tuple(weight.shape) != (x.shape[-1],):
        raise UnsupportedError(
            f"rms_norm_quantized: x is {list(x.shape)}, weight {list(weight.shape)}: weight must "
            "be [N] where N is x's last axis"
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise UnsupportedError(
            f"rms_norm_quantized: x is {x.dtype} {list(x.shape)}, residual {residual.dtype} "
            f"{list(residual.shape)}: they must be alike"
        )
    on_one_device("rms_norm_quantized", "x", x, weight=weight, residual=residual)


def _run(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(x, weight, residual, element)
    run = choose(OP, x.device.type, x.dtype).forward
    return run(x, weight, residual, eps, element)


def _fake(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, element: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    del eps
    _check(x, weight, residual, element)
    total = x.new_empty(x.shape if residual is not None else (0,))
    return *empty(x.shape, element, x.device), total


_forward = define(
    "rms_norm_quantized",
    "(Tensor x, Tensor weight, Tensor? residual, float eps, str element) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """x, weight (and residual) read once; codes, scale, row_sum (and total) written once."""
    x, weight, residual = (arguments[name] for name in ("x", "weight", "residual"))
    size, added = x.numel() * x.element_size(), 0 if residual is None else 1
    return Cost(
        flops=(8 + added) * x.numel(),
        bytes_read=(1 + added) * size + weight.numel() * weight.element_size(),
        bytes_written=x.numel() + added * size + 8 * x.shape[:-1].numel(),
    )


OP = Op(
    name="rms_norm_quantized",
    axes=(Axis(name="M", meaning="rows: tokens"), Axis(name="N", meaning="hidden size")),
    tensors=(
        TensorSpec(name="x", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="weight", axes=("N",), dtypes=_DTYPES),
        TensorSpec(name="residual", axes=("M", "N"), dtypes=_DTYPES, optional=True),
        TensorSpec(
            name="codes", axes=("M", "N"), dtypes=(torch.int8, torch.float8_e4m3fn), role="output"
        ),
        TensorSpec(name="scale", axes=("M",), dtypes=(torch.float32,), role="output"),
        TensorSpec(name="row_sum", axes=("M",), dtypes=(torch.int32, torch.float32), role="output"),
        TensorSpec(name="total", axes=("M", "N"), dtypes=_DTYPES, optional=True, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.int8, relative=1.0, reason=_TIE),
        Tolerance(dtype=torch.float8_e4m3fn, relative=1.0, reason=_TIE),
        Tolerance(dtype=torch.int32, relative=1.0, reason="a sum of codes: " + _TIE),
        Tolerance(dtype=torch.float32, relative=RELATIVE, reason="a mean of squares, a root"),
        Tolerance(dtype=torch.float16, relative=2**-10, reason="one rounding to 11 bits"),
        Tolerance(dtype=torch.bfloat16, relative=2**-8, reason="one rounding to 8 bits"),
    ),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.rms_norm_quantized.triton",
            language="triton",
            space={"ROWS": (1, 2, 4), "num_warps": (2, 4, 8, 16)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.rms_norm_quantized.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(Baseline(name="eager", path="tercet.ops.rms_norm_quantized.baselines:eager"),),
)
