"""Expected: the outputs and gradients of the float64 reference, computed in the judge's process."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.harness.author_errors import declared_outputs, reference_outputs
from tercet.harness.check.compare import row_magnitude
from tercet.harness.workloads.gradients import vjp
from tercet.kernel.contract import Op

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The right results of one call.

    Attributes:
        outputs, magnitudes: per output, float64.
        gradients, gradient_magnitudes: argument name -> float64.
    """

    outputs: tuple[Tensor, ...]
    magnitudes: tuple[Tensor, ...]
    gradients: dict[str, Tensor]
    gradient_magnitudes: dict[str, Tensor]


class UnlikeFakeError(ValueError):
    """The op's fake promises other shapes than its reference gives."""


def expect(
    op: Op, arguments: Values, grad_outputs: list[Tensor | None] | None, names: Any
) -> Expected:
    """The reference's outputs, and its gradients with respect to `names`.

    UnlikeFakeError where an incoming gradient, made after the op's fake, fits no output.
    """
    exact = dict(arguments)
    for name in names if grad_outputs is not None else ():
        exact[name] = arguments[name].detach().double().requires_grad_()
    outputs = reference_outputs(op, exact)
    gradients = dict[str, Tensor]()
    if grad_outputs is not None and names:
        _refuse_unlike(op, outputs, grad_outputs)
        exact_grad_outputs = [
            None if grad_output is None else grad_output.double().reshape(output.shape)
            for output, grad_output in zip(outputs, grad_outputs, strict=True)
        ]
        gradients = {
            name: torch.zeros_like(exact[name]) if gradient is None else gradient
            for name, gradient in vjp(outputs, exact_grad_outputs, exact, names).items()
        }
    plain = tuple(output.detach() for output in outputs)
    return Expected(
        outputs=plain,
        magnitudes=_magnitudes(op, arguments, plain),
        gradients=gradients,
        gradient_magnitudes=_gradient_magnitudes(op, arguments, plain, grad_outputs, gradients),
    )


def _refuse_unlike(op: Op, outputs: tuple[Tensor, ...], grad_outputs: list[Tensor | None]) -> None:
    for spec, output, promised in zip(
        op.of_role("output", "saved"), outputs, grad_outputs, strict=True
    ):
        if promised is not None and promised.numel() != output.numel():
            raise UnlikeFakeError(
                f"the reference's {spec.name} is {list(output.shape)}, the fake in op.py promises "
                f"{list(promised.shape)}"
            )


def _gradient_magnitudes(
    op: Op,
    arguments: Values,
    outputs: tuple[Tensor, ...],
    grad_outputs: list[Tensor | None] | None,
    gradients: dict[str, Tensor],
) -> dict[str, Tensor]:
    """The largest size in each row, and no less than what the op says was summed."""
    sizes = {name: row_magnitude(gradient) for name, gradient in gradients.items()}
    if op.gradient_magnitude is not None and grad_outputs is not None and gradients:
        directions = [
            torch.zeros_like(output) if each is None and spec.role == "output" else each
            for spec, output, each in zip(
                op.of_role("output", "saved"), outputs, grad_outputs, strict=True
            )
        ]
        for name, size in op.gradient_magnitude(directions, **arguments).items():
            if name in sizes:
                sizes[name] = torch.maximum(sizes[name], size.double())
    return sizes


def _magnitudes(op: Op, arguments: Values, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if op.magnitude is None:
        return tuple(output.abs() for output in outputs)
    return declared_outputs(op, "its magnitude", op.magnitude(**arguments))
