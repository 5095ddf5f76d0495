"""softmax: y = exp(scale x) / sum(exp(scale x)) along the last axis."""

import math
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
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.softmax.cases import CASES, inputs, shapes
from tercet.ops.softmax.reference import gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LONG, _LONGEST = 16385, 2**31 - 1  # a row that Triton holds in registers is faster there
_SPACE = {
    "ROWS": (1, 4),
    "BLOCK": (4096, 8192, 16384, 32768),
    "WAVES": (0, 2, 3, 4, 6),
    "num_warps": (4, 8, 16, 32),
}


def softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    """Softmax of scale * x along the last axis, in float32.

    The row's maximum is subtracted first, so that no exponential overflows. As in torch, a row that
    is all -inf, or has +inf or NaN, becomes NaN.

    Args:
        x: [..., N], float32, float16 or bfloat16; strides as they come; N of any size.
        scale: positive and finite; 1 / temperature, or 1 / sqrt(head width).

    Returns:
        y [..., N] in x's dtype. Differentiable with respect to x; the gradient is made of y as
        returned, in x's dtype.

    Raises:
        UnsupportedError: for a shape, dtype or scale that does not fit.
    """
    return _forward(x, scale)


def _check(x: Tensor, scale: float) -> None:
    if x.dtype not in _DTYPES:
        raise UnsupportedError(
            f"softmax: x is {x.dtype}: it may be float32, float16 or bfloat16; convert it"
        )
    if not x.dim():
        raise UnsupportedError("softmax: x is a scalar: it must be [..., N]; reshape it to [1]")
    if not 0 < scale < math.inf:
        raise UnsupportedError(
            f"softmax: scale is {scale}: it must be positive and finite; negate x for a softmin"
        )


def _run(x: Tensor, scale: float) -> Tensor:
    _check(x, scale)
    return choose(OP, x.device.type, x.dtype, _sizes(x)).forward(x, scale)


def _sizes(x: Tensor) -> dict[str, int]:
    return {"M": x.shape[:-1].numel(), "N": x.shape[-1]}


def _fake(x: Tensor, scale: float) -> Tensor:
    _check(x, scale)
    return x.new_empty(x.shape)


def _run_gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    return choose_gradient(OP, y.device.type, y.dtype, _sizes(y))(grad, y, scale)


def _fake_gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    del grad, scale
    return y.new_empty(y.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.scale = inputs
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _gradient(grad, *ctx.saved_tensors, ctx.scale), None


_forward = define("softmax", "(Tensor x, float scale) -> Tensor", run=_run, fake=_fake)
_gradient = define(
    "softmax_gradient",
    "(Tensor grad, Tensor y, float scale) -> Tensor",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("softmax", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """x read once, y written once; maximum, difference, exponential, sum and quotient."""
    x = arguments["x"]
    size = x.numel() * x.element_size()
    return Cost(flops=5 * x.numel(), bytes_read=size, bytes_written=size)


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """grad and y read once, grad_x written once."""
    x = arguments["x"]
    size = x.numel() * x.element_size()
    return Cost(flops=5 * x.numel(), bytes_read=2 * size, bytes_written=size)


OP = Op(
    name="softmax",
    axes=(Axis(name="M", meaning="rows"), Axis(name="N", meaning="what sums to one")),
    tensors=(
        TensorSpec(name="x", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="y", axes=("M", "N"), dtypes=_DTYPES, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    gradient_magnitude=gradient_magnitude,
    cost=cost,
    gradient_cost=gradient_cost,
    cases=CASES,
    tolerances=(
        Tolerance(
            dtype=torch.float32,
            relative=2e-6,
            reason="an exponential to 22 bits, a float32 sum and a quotient",
        ),
        Tolerance(
            dtype=torch.float16,
            relative=2**-10,
            inner=4e-6,
            reason="one rounding to 11 bits; the gradient is made of y rounded so",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-8,
            inner=4e-6,
            reason="one rounding to 8 bits; the gradient is made of y rounded so",
        ),
    ),
    differentiable=("x",),
    implementations=(
        Implementation(
            name="cuda",
            requirement=Requirement(
                devices=("cuda",),
                dtypes=_DTYPES,
                nvcc=True,
                capability=(9, 0),
                ranges={"N": (_LONG, _LONGEST)},
            ),
            module="tercet.ops.softmax.cuda",
            language="cuda",
            space={"STREAM": (0, 2, 4, 8)},
        ),
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.softmax.triton",
            language="triton",
            space=_SPACE,
            gradient_space=_SPACE,
            small_space={"BLOCK": (16, 64)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.softmax.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(
        Baseline(name="eager", path="tercet.ops.softmax.baselines:eager"),
        Baseline(name="liger", path="tercet.ops.softmax.baselines:liger", package="liger-kernel"),
    ),
)
