"""gelu_gate: y = gelu(gate) * up."""

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
from tercet.ops.gelu_gate.cases import CASES, inputs, shapes
from tercet.ops.gelu_gate.reference import gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def gelu_gate(gate: Tensor, up: Tensor) -> Tensor:
    """The gate of a GeGLU MLP (Shazeer 2020, arXiv:2002.05202), as in Gemma.

    y = gelu(gate) * up in float32, with gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715
    g^3))).

    Args:
        gate: [..., N], float32, float16 or bfloat16; strides as they come.
        up: like gate.

    Returns:
        y [..., N] in gate's dtype. Differentiable with respect to gate and up.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    return _forward(gate, up)


def _check(gate: Tensor, up: Tensor) -> None:
    if gate.dtype not in _DTYPES:
        raise UnsupportedError(
            f"gelu_gate: gate is {gate.dtype}: it may be float32, float16 or bfloat16"
        )
    if not gate.dim() or (gate.shape, gate.dtype) != (up.shape, up.dtype):
        raise UnsupportedError(
            f"gelu_gate: gate is {gate.dtype} {list(gate.shape)}, up {up.dtype} {list(up.shape)}: "
            "they must be alike, with at least one axis"
        )
    on_one_device("gelu_gate", "gate", gate, up=up)


def _run(gate: Tensor, up: Tensor) -> Tensor:
    _check(gate, up)
    return choose(OP, gate.device.type, gate.dtype).forward(gate, up)


def _fake(gate: Tensor, up: Tensor) -> Tensor:
    _check(gate, up)
    return gate.new_empty(gate.shape)


def _run_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return choose_gradient(OP, gate.device.type, gate.dtype)(grad, gate, up)


def _fake_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    del grad, up
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    return _gradient(grad, *ctx.saved_tensors)


_forward = define("gelu_gate", "(Tensor gate, Tensor up) -> Tensor", run=_run, fake=_fake)
_gradient = define(
    "gelu_gate_gradient",
    "(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("gelu_gate", save=_save, backward=_backward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """gate and up read once, y written once."""
    gate = arguments["gate"]
    size = gate.numel() * gate.element_size()
    return Cost(flops=10 * gate.numel(), bytes_read=2 * size, bytes_written=size)


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """grad, gate and up read once, both gradients written once."""
    gate = arguments["gate"]
    size = gate.numel() * gate.element_size()
    return Cost(flops=22 * gate.numel(), bytes_read=3 * size, bytes_written=2 * size)


OP = Op(
    name="gelu_gate",
    axes=(Axis(name="M", meaning="rows: tokens"), Axis(name="N", meaning="width of the MLP")),
    tensors=(
        TensorSpec(name="gate", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="up", axes=("M", "N"), dtypes=_DTYPES),
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
        Tolerance(dtype=torch.float32, relative=1e-6, reason="an exponential and six products"),
        Tolerance(
            dtype=torch.float16, relative=2**-10, inner=4e-6, reason="twice one rounding to 11 bits"
        ),
        Tolerance(
            dtype=torch.bfloat16, relative=2**-8, inner=4e-6, reason="one rounding to 8 bits"
        ),
    ),
    differentiable=("gate", "up"),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.gelu_gate.triton",
            language="triton",
            space={"BLOCK": (512, 1024, 2048, 4096), "num_warps": (2, 4, 8)},
            gradient_space={"BLOCK": (512, 1024, 2048, 4096), "num_warps": (2, 4, 8)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.gelu_gate.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(
        Baseline(name="eager", path="tercet.ops.gelu_gate.baselines:eager"),
        Baseline(name="liger", path="tercet.ops.gelu_gate.baselines:liger", package="liger-kernel"),
    ),
)
