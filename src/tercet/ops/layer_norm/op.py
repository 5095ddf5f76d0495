"""layer_norm: y = (x - mean(x)) / std(x) * weight + bias."""

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
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.layer_norm.cases import CASES, inputs, shapes
from tercet.ops.layer_norm.reference import gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Layer normalization (Ba, Kiros and Hinton 2016, arXiv:1607.06450).

    y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias, in float32, over the last axis.

    Args:
        x: [..., N], float32, float16 or bfloat16; strides as they come.
        weight: [N], of x's dtype or float32.
        bias: [N], of weight's dtype, or None.
        eps: added to the variance.

    Returns:
        y [..., N] in x's dtype. Differentiable with respect to x, weight and bias.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    return _forward(x, weight, bias, eps)[0]


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.dtype not in _DTYPES or weight.dtype not in (x.dtype, torch.float32):
        raise UnsupportedError(
            f"layer_norm: x is {x.dtype}, weight {weight.dtype}: x may be float32, float16 or "
            "bfloat16, weight of x's dtype or float32"
        )
    if not x.dim() or tuple(weight.shape) != (x.shape[-1],):
        raise UnsupportedError(
            f"layer_norm: x is {list(x.shape)}, weight {list(weight.shape)}: weight must be [N] "
            "where N is x's last axis"
        )
    if bias is not None and (bias.shape != weight.shape or bias.dtype != weight.dtype):
        raise UnsupportedError(
            f"layer_norm: weight is {weight.dtype} {list(weight.shape)}, bias {bias.dtype} "
            f"{list(bias.shape)}: they must be alike"
        )
    on_one_device("layer_norm", "x", x, weight=weight, bias=bias)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, bias)
    return choose(OP, x.device.type, x.dtype).forward(x, weight, bias, eps)


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, bias)
    rows = x.shape[:-1].numel()
    return (
        x.new_empty(x.shape),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty(rows, dtype=torch.float32),
    )


def _run_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    run = choose_gradient(OP, x.device.type, x.dtype)
    return run(grad, x, weight, mean, rstd, has_bias)


def _fake_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_bias = weight.new_empty(weight.shape if has_bias else (0,))
    return x.new_empty(x.shape), weight.new_empty(weight.shape), grad_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, _ = inputs
    _, mean, rstd = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight, mean, rstd)


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_weight, grad_bias = _gradient(grad, *ctx.saved_tensors, ctx.has_bias)
    return grad_x, grad_weight, grad_bias if ctx.has_bias else None, None


_forward = define(
    "layer_norm",
    "(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_gradient = define(
    "layer_norm_gradient",
    "(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor rstd, bool has_bias) "
    "-> (Tensor, Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("layer_norm", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """x, weight (and bias) read once; y, mean and rstd written once."""
    x, weight, bias = (arguments[name] for name in ("x", "weight", "bias"))
    size, rows = x.numel() * x.element_size(), x.shape[:-1].numel()
    vectors = 1 if bias is None else 2
    return Cost(
        flops=(6 + vectors) * x.numel(),
        bytes_read=size + vectors * weight.numel() * weight.element_size(),
        bytes_written=size + 8 * rows,
    )


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """grad, x, weight, mean, rstd read once; grad_x, grad_weight (and grad_bias) written once."""
    x, weight, bias = (arguments[name] for name in ("x", "weight", "bias"))
    size, rows = x.numel() * x.element_size(), x.shape[:-1].numel()
    vector = weight.numel() * weight.element_size()
    return Cost(
        flops=(12 if bias is None else 13) * x.numel(),
        bytes_read=2 * size + vector + 8 * rows,
        bytes_written=size + (1 if bias is None else 2) * vector,
    )


OP = Op(
    name="layer_norm",
    axes=(Axis(name="M", meaning="rows: tokens"), Axis(name="N", meaning="hidden size")),
    tensors=(
        TensorSpec(name="x", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="weight", axes=("N",), dtypes=_DTYPES),
        TensorSpec(name="bias", axes=("N",), dtypes=_DTYPES, optional=True),
        TensorSpec(name="y", axes=("M", "N"), dtypes=_DTYPES, role="output"),
        TensorSpec(name="mean", axes=("M",), dtypes=(torch.float32,), role="saved"),
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
        Tolerance(dtype=torch.float32, relative=4e-6, reason="two float32 means and a root"),
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
    differentiable=("x", "weight", "bias"),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.layer_norm.triton",
            language="triton",
            space={
                "ROWS": (1, 2),
                "WAVES": (0, 1, 2, 4),
                "STAGES": (1, 2, 3),
                "WALK": (0, 2048, 4096, 8192),
                "num_warps": (4, 8, 16),
            },
            gradient_space={
                "ROWS": (1, 2),
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
            module="tercet.ops.layer_norm.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(
        Baseline(name="eager", path="tercet.ops.layer_norm.baselines:eager"),
        Baseline(
            name="liger", path="tercet.ops.layer_norm.baselines:liger", package="liger-kernel"
        ),
    ),
)
