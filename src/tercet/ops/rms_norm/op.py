"""rms_norm: y = (x + residual) / rms(x + residual) * weight."""

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
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.rms_norm.cases import CASES, inputs, shapes
from tercet.ops.rms_norm.reference import GRADIENT, gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rms_norm(
    x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-6
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalization (Zhang and Sennrich 2019, arXiv:1910.07467).

    total = x + residual; y = total / sqrt(mean(total^2) + eps) * weight, in float32.

    Args:
        x: [..., N], float32, float16 or bfloat16; strides as they come.
        weight: [N], of x's dtype or float32.
        residual: like x, or None.
        eps: added to the mean square.

    Returns:
        y [..., N] in x's dtype; with a residual (y, total), both in x's dtype. Differentiable with
        respect to x, weight and residual.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    y, total, _ = _call(x, weight, residual, eps)
    return y if residual is None else (y, total)


def _check(x: Tensor, weight: Tensor, residual: Tensor | None) -> None:
    if x.dtype not in _DTYPES or weight.dtype not in (x.dtype, torch.float32):
        raise UnsupportedError(
            f"rms_norm: x is {x.dtype}, weight {weight.dtype}: x may be float32, float16 or "
            "bfloat16, weight of x's dtype or float32"
        )
    if not x.dim() or tuple(weight.shape) != (x.shape[-1],):
        raise UnsupportedError(
            f"rms_norm: x is {list(x.shape)}, weight {list(weight.shape)}: weight must be [N] "
            "where N is x's last axis"
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise UnsupportedError(
            f"rms_norm: x is {x.dtype} {list(x.shape)}, residual {residual.dtype} "
            f"{list(residual.shape)}: they must be alike"
        )
    on_one_device("rms_norm", "x", x, weight=weight, residual=residual)


def _run(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, residual)
    return choose(OP, x.device.type, x.dtype).forward(x, weight, residual, eps)


def _fake(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, residual)
    return (
        x.new_empty(x.shape),
        x.new_empty(x.shape if residual is not None else (0,)),
        x.new_empty(x.shape[:-1].numel(), dtype=torch.float32),
    )


def _run_gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    run = choose_gradient(OP, total.device.type, total.dtype)
    return run(grad, grad_total, total, weight, rstd)


def _fake_gradient(
    grad: Tensor, grad_total: Tensor | None, total: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    return total.new_empty(total.shape), weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, residual, _ = inputs
    _, total, rstd = output
    ctx.added = residual is not None
    ctx.save_for_backward(total if ctx.added else x, weight, rstd)


def _backward(
    ctx: Any, grad: Tensor, grad_total: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    grad_x, grad_weight = _gradient(grad, grad_total if ctx.added else None, *ctx.saved_tensors)
    return grad_x, grad_weight, grad_x if ctx.added else None, None


_forward = define(
    "rms_norm",
    "(Tensor x, Tensor weight, Tensor? residual, float eps) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)
_gradient = define(
    "rms_norm_gradient",
    "(Tensor grad, Tensor? grad_total, Tensor total, Tensor weight, Tensor rstd) "
    "-> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("rms_norm", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """x, weight (and residual) read once; y, rstd (and total) written once."""
    x, weight, residual = (arguments[name] for name in ("x", "weight", "residual"))
    size, rows = x.numel() * x.element_size(), x.shape[:-1].numel()
    tensors = 1 if residual is None else 2
    return Cost(
        flops=(3 + tensors) * x.numel(),
        bytes_read=tensors * size + weight.numel() * weight.element_size(),
        bytes_written=tensors * size + 4 * rows,
    )


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """grad, total, weight, rstd (and grad_total) read once; grad_x and grad_weight written once."""
    x, weight, residual = (arguments[name] for name in ("x", "weight", "residual"))
    size, rows = x.numel() * x.element_size(), x.shape[:-1].numel()
    weights = weight.numel() * weight.element_size()
    return Cost(
        flops=10 * x.numel(),
        bytes_read=(2 if residual is None else 3) * size + weights + 4 * rows,
        bytes_written=size + weights,
    )


OP = Op(
    name="rms_norm",
    axes=(Axis(name="M", meaning="rows: tokens"), Axis(name="N", meaning="hidden size")),
    tensors=(
        TensorSpec(name="x", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="weight", axes=("N",), dtypes=_DTYPES),
        TensorSpec(name="residual", axes=("M", "N"), dtypes=_DTYPES, optional=True),
        TensorSpec(name="y", axes=("M", "N"), dtypes=_DTYPES, role="output"),
        TensorSpec(name="total", axes=("M", "N"), dtypes=_DTYPES, optional=True, role="output"),
        TensorSpec(name="rstd", axes=("M",), dtypes=(torch.float32,), role="saved"),
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
            relative=4e-6,
            gradient=GRADIENT,
            reason="a float32 mean of squares, a root",
        ),
        Tolerance(
            dtype=torch.float16,
            relative=2**-10,
            inner=4e-6,
            reason="one rounding to 11 bits, and rstd",
        ),
        Tolerance(
            dtype=torch.bfloat16,
            relative=2**-8,
            inner=4e-6,
            reason="one rounding to 8 bits, and rstd",
        ),
    ),
    differentiable=("x", "weight", "residual"),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.rms_norm.triton",
            language="triton",
            space={
                "ROWS": (1, 2, 4),
                "WALK": (0, 1024, 2048, 4096, 8192),
                "num_warps": (2, 4, 8, 16),
            },
            gradient_space={
                "ROWS": (1, 2, 4),
                "WAVES": (1, 2),
                "STAGES": (2, 3, 4),
                "WALK": (0, 2048, 4096),
                "num_warps": (4, 8, 16),
            },
            small_space={"WALK": (16, 64)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.rms_norm.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(
        Baseline(name="eager", path="tercet.ops.rms_norm.baselines:eager"),
        Baseline(name="liger", path="tercet.ops.rms_norm.baselines:liger", package="liger-kernel"),
    ),
)
