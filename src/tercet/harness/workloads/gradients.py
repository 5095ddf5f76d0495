"""Gradients: which arguments have one, random incoming gradients, vector-Jacobian products.

`grad_outputs` holds the incoming gradient of each output; None for an output without (a saved one).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tercet.errors import UnsupportedError
from tercet.harness.author_errors import declared_outputs
from tercet.kernel.contract import Case, Op

Values = dict[str, Any]
_LEAST_OF_LOSS = 0.5


def select_differentiable(op: Op, prepared: Values) -> tuple[str, ...]:
    """Which of the arguments at hand have a gradient; 8-bit floats are codes, which have none."""
    return tuple(
        name
        for name in op.differentiable
        if isinstance(prepared.get(name), Tensor)
        and prepared[name].is_floating_point()
        and prepared[name].element_size() > 1
    )


def describe_outputs(op: Op, prepared: Values) -> tuple[Tensor, ...]:
    """Shape, strides and dtype of each output, from the op's fake.

    UnsupportedError where it gives other outputs than op.py declares.
    """
    with FakeTensorMode() as mode:
        fake = {
            name: mode.from_tensor(value) if isinstance(value, Tensor) else value
            for name, value in prepared.items()
        }
        try:
            result = op.run(*fake.values())
        except RuntimeError as error:
            if not str(error).startswith("Unable to cast"):
                raise
            # torch itself compares what a fake gives with the schema
            raise UnsupportedError(
                f"op {op.name!r}: its fake in op.py gives something else than the op's schema "
                f"promises: {error}"
            ) from error
        return declared_outputs(op, "its fake in op.py", result)


def draw_grad_outputs(
    op: Op, prepared: Values, seed: int, device: str = "cpu"
) -> list[Tensor | None]:
    """A random incoming gradient for each output that has one."""
    roles = [spec.role for spec in op.of_role("output", "saved")]
    grad_outputs = list[Tensor | None]()
    for at, (role, output) in enumerate(zip(roles, describe_outputs(op, prepared), strict=True)):
        if role == "saved" or not output.is_floating_point() or output.element_size() == 1:
            grad_outputs.append(None)
            continue
        generator = torch.Generator(device).manual_seed(seed + 101 + at)
        grad_output = torch.randn(output.shape, generator=generator, device=device)
        if not output.dim():
            # all else is a multiple of a loss's one: near 0, all of it would be
            grad_output = grad_output.sign() * grad_output.abs().clamp(min=_LEAST_OF_LOSS)
        grad_outputs.append(grad_output.to(output.dtype))
    return grad_outputs


def grad_outputs_of(op: Op, case: Case, prepared: Values, seed: int) -> list[Tensor | None]:
    """The incoming gradients of a case: random ones, changed as the case says."""
    drawn, change = draw_grad_outputs(op, prepared, seed), case.incoming
    if change is None:
        return drawn
    return [None if each is None else change(each, at) for at, each in enumerate(drawn)]


def make_leaves(arguments: Mapping[str, Any], names: Iterable[str]) -> Values:
    """The arguments; those named share their memory, but are new leaves that want a gradient."""
    leaves = dict(arguments)
    for name in names:
        leaves[name] = leaves[name].detach().requires_grad_()
    return leaves


def pair_grad_outputs(
    outputs: Iterable[Tensor], grad_outputs: Iterable[Any]
) -> tuple[list[Tensor], list[Any]]:
    """The outputs that depend on a leaf and have an incoming gradient, and those gradients."""
    pairs = [
        (output, grad_output)
        for output, grad_output in zip(outputs, grad_outputs, strict=True)
        if grad_output is not None and output.requires_grad
    ]
    return [output for output, _ in pairs], [grad_output for _, grad_output in pairs]


def vjp(
    outputs: Iterable[Tensor],
    grad_outputs: Iterable[Any],
    leaves: Mapping[str, Any],
    names: Sequence[str],
    *,
    allow_unused: bool = True,
    keep: bool = False,
) -> dict[str, Tensor | None]:
    """The vector-Jacobian product: the gradient of each named leaf.

    None for a leaf on which no output with an incoming gradient depends; where `allow_unused` is
    False, that is torch's RuntimeError. All are None where no output has an incoming gradient. With
    `keep` the graph can be used again.
    """
    dependent, incoming = pair_grad_outputs(outputs, grad_outputs)
    if not dependent or not names:
        return dict.fromkeys(names)
    inputs = [leaves[name] for name in names]
    found = torch.autograd.grad(
        dependent, inputs, incoming, allow_unused=allow_unused, retain_graph=keep
    )
    return dict(zip(names, found, strict=True))
