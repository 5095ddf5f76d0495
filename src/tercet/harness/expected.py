"""Expected: what the float64 reference says of a case, computed on the judge's side."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tercet.harness.compare import row_magnitude
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


def wanted_gradients(op: Op, prepared: Values) -> tuple[str, ...]:
    """Which of the arguments at hand have a gradient; 8-bit floats are codes, which have none."""
    return tuple(
        name
        for name in op.differentiable
        if isinstance(prepared.get(name), Tensor)
        and prepared[name].is_floating_point()
        and prepared[name].element_size() > 1
    )


def described(op: Op, prepared: Values) -> tuple[Tensor, ...]:
    """Shape, strides and dtype of each output, from the op's fake."""
    with FakeTensorMode() as mode:
        fake = {
            name: mode.from_tensor(value) if isinstance(value, Tensor) else value
            for name, value in prepared.items()
        }
        return outputs_of(op.run(*fake.values()))


def directions(op: Op, prepared: Values, seed: int, device: str = "cpu") -> list[Tensor | None]:
    """A random incoming gradient for each output that has one."""
    roles = [spec.role for spec in op.of_role("output", "saved")]
    ways = list[Tensor | None]()
    for at, (role, output) in enumerate(zip(roles, described(op, prepared), strict=True)):
        if role == "saved" or not output.is_floating_point() or output.element_size() == 1:
            ways.append(None)
            continue
        generator = torch.Generator(device).manual_seed(seed + 101 + at)
        way = torch.randn(output.shape, generator=generator, device=device)
        ways.append(way.to(output.dtype))
    return ways


def expect(op: Op, arguments: Values, ways: list[Tensor | None] | None, names: Any) -> Expected:
    """The reference's outputs, and its gradients with respect to `names` for these directions."""
    exact = dict(arguments)
    for name in names if ways is not None else ():
        exact[name] = arguments[name].detach().double().requires_grad_()
    outputs = outputs_of(op.reference(**exact))
    gradients = dict[str, Tensor]()
    if ways is not None and names:
        pairs = [
            (output, way.double())
            for output, way in zip(outputs, ways, strict=True)
            if way is not None and output.requires_grad
        ]
        found: tuple[Any, ...] = torch.autograd.grad(
            [output for output, _ in pairs],
            [exact[name] for name in names],
            [way.reshape(output.shape) for output, way in pairs],
            allow_unused=True,
        )
        gradients = {
            name: g if isinstance(g, Tensor) else torch.zeros_like(exact[name])
            for name, g in zip(names, found, strict=True)
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
