"""quantize_activation: each row of x as one-byte codes, a scale and the sum of its codes."""

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
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.quantize_activation.cases import CASES, inputs, shapes
from tercet.ops.quantize_activation.reference import reference
from tercet.packed_weight.row_codes import Quantized, empty, row_codes

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# of fewer rows each multiprocessor has but a few; longer ones fit no block
_MANY, _LONGEST = 1024, 65536


def quantize_activation(x: Tensor, element: str = "int8") -> Quantized:
    """Symmetric quantization of activations, one scale a token.

    scale = max |x| over the row / 127; codes = round(x / scale), to nearest, ties to even, within
    [-127, 127]: both divisions are IEEE float32, so that every implementation gives the same bits.
    For fp8_e4m3 the limit is 448 and codes are rounded to the nearest e4m3 number; a zero is +0.

    A row whose scale is 0 (all zeros, or smaller than about 1e-43), inf or NaN (an element is) has
    codes 0 and row_sum 0: code * scale is 0, or NaN where the row was not finite.

    Args:
        x: [..., K], float32, float16 or bfloat16; strides as they come.
        element: "int8" or "fp8_e4m3".

    Returns:
        codes [..., K], int8 or float8_e4m3fn; scale [...], float32; row_sum [...], the sum of a
        row's codes, int32 or (fp8, exact and rounded once) float32: what a product with unsigned
        weight codes has to be corrected by. Not differentiable.

    Raises:
        UnsupportedError: for shapes, dtypes, elements or devices that do not fit.
    """
    return _call(x, element)


def _check(x: Tensor, element: str) -> None:
    row_codes(element)
    if x.dtype not in _DTYPES or not x.dim():
        raise UnsupportedError(
            f"quantize_activation: x is {x.dtype} {list(x.shape)}: it may be float32, float16 or "
            "bfloat16 of [..., K]"
        )


def _run(x: Tensor, element: str) -> Quantized:
    _check(x, element)
    sizes = {"M": x.shape[:-1].numel(), "K": x.shape[-1]}
    options = {"element": element}
    return choose(OP, x.device.type, x.dtype, sizes, options).forward(x, element)


def _fake(x: Tensor, element: str) -> Quantized:
    _check(x, element)
    return empty(x.shape, element, x.device)


_forward = define(
    "quantize_activation",
    "(Tensor x, str element) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """x read once; codes of one byte, scale and row_sum written once."""
    x: Tensor = arguments["x"]
    return Cost(
        flops=4 * x.numel(),
        bytes_read=x.numel() * x.element_size(),
        bytes_written=x.numel() + 8 * x.shape[:-1].numel(),
    )


OP = Op(
    name="quantize_activation",
    axes=(Axis(name="M", meaning="rows: tokens"), Axis(name="K", meaning="features")),
    tensors=(
        TensorSpec(name="x", axes=("M", "K"), dtypes=_DTYPES),
        TensorSpec(
            name="codes", axes=("M", "K"), dtypes=(torch.int8, torch.float8_e4m3fn), role="output"
        ),
        TensorSpec(name="scale", axes=("M",), dtypes=(torch.float32,), role="output"),
        TensorSpec(name="row_sum", axes=("M",), dtypes=(torch.int32, torch.float32), role="output"),
    ),
    run=_forward,
    reference=reference,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.float32, relative=0.0, reason="one IEEE division; an exact sum"),
        Tolerance(dtype=torch.float8_e4m3fn, relative=0.0, reason="defined to the bit"),
    ),
    implementations=(
        Implementation(
            name="cuda",
            requirement=Requirement(
                devices=("cuda",),
                dtypes=(torch.float16, torch.bfloat16),
                nvcc=True,
                capability=(9, 0),
                multiples={"K": 8},
                ranges={"M": (_MANY, 2**31 - 1), "K": (8, _LONGEST)},
            ),
            module="tercet.ops.quantize_activation.cuda",
            language="cuda",
            space={"VECTORS": (4, 8), "STAGES": (1, 2, 3)},
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.quantize_activation.triton",
            language="triton",
            space={
                "HELD": (2048, 8192, 16384, 32768),
                "BLOCK": (2048, 4096, 8192),
                "STAGES": (1, 2, 3),
                "num_warps": (4, 8, 16, 32),
            },
            small_space={"HELD": (16,), "BLOCK": (16, 64)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.quantize_activation.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(Baseline(name="eager", path="tercet.ops.quantize_activation.baselines:eager"),),
)
