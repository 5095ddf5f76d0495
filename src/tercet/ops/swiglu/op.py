"""swiglu: y = silu(gate) * up."""

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
from tercet.ops.swiglu.cases import CASES, inputs, shapes
from tercet.ops.swiglu.reference import gradient_magnitude, magnitude, reference

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """The gated activation of Llama's MLP (Shazeer 2020, arXiv:2002.05202).

    y = gate * sigmoid(gate) * up, in float32, rounded once.

    Args:
        gate: [..., N], float32, float16 or bfloat16; rows may lie any distance apart. Without up:
            [..., 2N], gate in the first half of each row and up in the second, as a fused gate|up
            product leaves them.
        up: like gate, or None.

    Returns:
        y [..., N] in gate's dtype. Differentiable with respect to gate and up, in one pass that
        computes the sigmoid again. Without up the gradient is written straight into one [..., 2N]
        tensor; two views of one tensor give the same numbers, but autograd then assembles their
        gradients with extra copies.

    Raises:
        UnsupportedError: for shapes, dtypes or devices that do not fit.
    """
    return _call(gate, up)


def _check(gate: Tensor, up: Tensor | None) -> None:
    if gate.dtype not in _DTYPES or not gate.dim():
        raise UnsupportedError(
            f"swiglu: gate is {gate.dtype} {list(gate.shape)}: it may be float32, float16 or "
            "bfloat16 of [..., N]"
        )
    if up is None:
        if gate.shape[-1] % 2:
            raise UnsupportedError(
                f"swiglu: gate is {list(gate.shape)} without up: its last axis holds gate and up "
                "side by side, so its size must be even; or give up"
            )
        return
    if up.shape != gate.shape or up.dtype != gate.dtype:
        raise UnsupportedError(
            f"swiglu: gate is {gate.dtype} {list(gate.shape)}, up {up.dtype} {list(up.shape)}: "
            "they must be alike"
        )
    on_one_device("swiglu", "gate", gate, up=up)


def _run(gate: Tensor, up: Tensor | None) -> Tensor:
    _check(gate, up)
    return choose(OP, gate.device.type, gate.dtype).forward(gate, up)


def _fake(gate: Tensor, up: Tensor | None) -> Tensor:
    _check(gate, up)
    width = gate.shape[-1] if up is not None else gate.shape[-1] // 2
    return gate.new_empty((*gate.shape[:-1], width))


def _run_gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return choose_gradient(OP, gate.device.type, gate.dtype)(grad, gate, up)


def _fake_gradient(grad: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    del grad
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape if up is not None else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    gate, up = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    gate, up = ctx.saved_tensors
    grad_gate, grad_up = _gradient(grad, gate, up)
    return grad_gate, grad_up if up is not None else None


_forward = define("swiglu", "(Tensor gate, Tensor? up) -> Tensor", run=_run, fake=_fake)
_gradient = define(
    "swiglu_gradient",
    "(Tensor grad, Tensor gate, Tensor? up) -> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
_call = direct_call(_forward)
differentiate("swiglu", save=_save, backward=_backward)


def _elements(arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Elements of y, and bytes of one."""
    gate: Tensor = arguments["gate"]
    fused = arguments["up"] is None
    return gate.numel() // 2 if fused else gate.numel(), gate.element_size()


def cost(arguments: Mapping[str, Any]) -> Cost:
    """gate and up read once, y written once."""
    elements, size = _elements(arguments)
    return Cost(flops=5 * elements, bytes_read=2 * size * elements, bytes_written=size * elements)


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """grad, gate and up read once, both gradients written once."""
    elements, size = _elements(arguments)
    return Cost(
        flops=11 * elements, bytes_read=3 * size * elements, bytes_written=2 * size * elements
    )


_SPACE = {
    "ROWS": (1, 2, 4),
    "BLOCK": (1024, 2048, 4096, 8192, 16384),
    "num_warps": (4, 8, 16, 32),
}

OP = Op(
    name="swiglu",
    axes=(
        Axis(name="M", meaning="rows: tokens"),
        Axis(name="N", meaning="intermediate size; gate has 2N where it holds up as well"),
    ),
    tensors=(
        TensorSpec(name="gate", axes=("M", "N"), dtypes=_DTYPES),
        TensorSpec(name="up", axes=("M", "N"), dtypes=_DTYPES, optional=True),
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
        Tolerance(dtype=torch.float32, relative=4e-6, reason="an exponential and a quotient"),
        Tolerance(
            dtype=torch.float16, relative=2**-10, inner=4e-6, reason="one rounding to 11 bits"
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
            module="tercet.ops.swiglu.triton",
            language="triton",
            space=_SPACE,
            gradient_space=_SPACE,
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.swiglu.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="M",
    baselines=(
        Baseline(name="eager", path="tercet.ops.swiglu.baselines:eager"),
        Baseline(name="liger", path="tercet.ops.swiglu.baselines:liger", package="liger-kernel"),
    ),
)
