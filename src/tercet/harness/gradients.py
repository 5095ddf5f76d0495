"""Gradients: which arguments have one, which way each output is pulled, and what autograd gives.

A way is the incoming gradient of one output; None for an output that has none (a saved one).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tercet.kernel.contract import Op, outputs_of

Values = dict[str, Any]
Ways = Sequence[Tensor | None]


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


def as_leaves(arguments: Mapping[str, Any], names: Iterable[str]) -> Values:
    """The arguments; those named share their memory, but are new leaves that want a gradient."""
    leaves = dict(arguments)
    for name in names:
        leaves[name] = leaves[name].detach().requires_grad_()
    return leaves


def paired(outputs: Iterable[Tensor], ways: Iterable[Any]) -> tuple[list[Tensor], list[Any]]:
    """The outputs that depend on a leaf and have a way, and their ways."""
    pairs = [
        (output, way)
        for output, way in zip(outputs, ways, strict=True)
        if way is not None and output.requires_grad
    ]
    return [output for output, _ in pairs], [way for _, way in pairs]


def pull(
    outputs: Iterable[Tensor],
    ways: Iterable[Any],
    leaves: Mapping[str, Any],
    names: Sequence[str],
    *,
    allow_unused: bool = True,
) -> dict[str, Tensor | None]:
    """The gradient of each named leaf.

    None for one on which no pulled output depends; where `allow_unused` is False, that is torch's
    RuntimeError. All are None where no output is pulled.
    """
    pulled, incoming = paired(outputs, ways)
    if not pulled or not names:
        return dict.fromkeys(names)
    inputs = [leaves[name] for name in names]
    found = torch.autograd.grad(pulled, inputs, incoming, allow_unused=allow_unused)
    return dict(zip(names, found, strict=True))
