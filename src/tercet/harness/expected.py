"""Expected: what the float64 reference says of a case, computed on the judge's side."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.harness.compare import row_magnitude
from tercet.harness.gradients import pull
from tercet.kernel.contract import Op, outputs_of

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


def expect(op: Op, arguments: Values, ways: list[Tensor | None] | None, names: Any) -> Expected:
    """The reference's outputs, and its gradients with respect to `names` for these directions."""
    exact = dict(arguments)
    for name in names if ways is not None else ():
        exact[name] = arguments[name].detach().double().requires_grad_()
    outputs = outputs_of(op.reference(**exact))
    gradients = dict[str, Tensor]()
    if ways is not None and names:
        exact_ways = [
            None if way is None else way.double().reshape(output.shape)
            for output, way in zip(outputs, ways, strict=True)
        ]
        gradients = {
            name: torch.zeros_like(exact[name]) if gradient is None else gradient
            for name, gradient in pull(outputs, exact_ways, exact, names).items()
        }
    plain = tuple(output.detach() for output in outputs)
    return Expected(
        outputs=plain,
        magnitudes=_magnitudes(op, arguments, plain),
        gradients=gradients,
        gradient_magnitudes=_gradient_magnitudes(op, arguments, ways, gradients),
    )


def _gradient_magnitudes(
    op: Op, arguments: Values, ways: list[Tensor | None] | None, gradients: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The largest size in each row, and no less than what the op says was summed."""
    sizes = {name: row_magnitude(gradient) for name, gradient in gradients.items()}
    if op.gradient_magnitude is not None and ways is not None and gradients:
        for name, size in op.gradient_magnitude(ways, **arguments).items():
            if name in sizes:
                sizes[name] = torch.maximum(sizes[name], size.double())
    return sizes


def _magnitudes(op: Op, arguments: Values, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if op.magnitude is None:
        return tuple(output.abs() for output in outputs)
    return outputs_of(op.magnitude(**arguments))
