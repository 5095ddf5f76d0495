"""Call: one implementation at one workload, prepared so that it can be run again and again."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from tercet.errors import UnsupportedError
from tercet.harness.workloads.gradients import make_leaves, select_differentiable
from tercet.kernel.contract import Cost, Op, Workload, outputs_of
from tercet.kernel.select import explain, load, using
from tercet.kernel.tuned import Direction
from tercet.ops.discover import find

_SEED = 0


class Request(BaseModel):
    """What to call, in a form that can be sent to another process.

    Attributes:
        op: a name or the path of a folder, as `find` takes it.
        implementation: its name.
        name, sizes, dtype, options: the workload.
        direction, device: which of the two, and where.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    implementation: str
    name: str
    sizes: dict[str, int]
    dtype: str
    options: dict[str, Any]
    direction: Direction
    device: str

    @property
    def workload(self) -> Workload:
        """As the op takes it."""
        return Workload(
            name=self.name,
            sizes=self.sizes,
            dtype=getattr(torch, self.dtype),
            options=self.options,
        )


@dataclass(frozen=True, kw_only=True)
class PreparedCall:
    """A call that is ready: `run` makes it; `cost` is the least work that it must do."""

    run: Callable[[], object]
    cost: Cost


def choose_implementation(op: Op, workload: Workload, device: str, name: str | None) -> str:
    """The implementation of that name, or the one that selection takes.

    UnsupportedError where it may not run here, and why.
    """
    verdicts = explain(op, device, workload.dtype, workload.sizes, op.options_of(workload))
    if name is not None:
        op.implementation(name)
        verdicts = tuple(verdict for verdict in verdicts if verdict.implementation == name)
    for verdict in verdicts:
        if verdict.chosen or (name is not None and verdict.allowed):
            return verdict.implementation
    reasons = "; ".join(f"{one.implementation}: {one.reason}" for one in verdicts)
    raise UnsupportedError(f"op {op.name!r} cannot be profiled on {device}: {reasons}")


@contextmanager
def prepare_call(request: Request) -> Generator[PreparedCall, None, None]:
    """The call, its inputs drawn, its forward done once where the backward is asked for.

    UnsupportedError for an op without `inputs`, or without a gradient.
    """
    op = find(request.op)
    if op.inputs is None:
        raise UnsupportedError(
            f"op {op.name!r} has no `inputs` to draw a workload from: give its Op one"
        )
    arguments = op.prepare(op.inputs(request.workload, _SEED, request.device))
    with using(op, load(op, request.implementation)):
        if request.direction == "forward":
            yield PreparedCall(run=lambda: _forward(op, arguments), cost=op.cost(arguments))
        elif op.gradient_cost is None:
            raise UnsupportedError(f"op {op.name!r} has no backward: profile its forward")
        else:
            yield PreparedCall(run=_backward(op, arguments), cost=op.gradient_cost(arguments))


def _forward(op: Op, arguments: dict[str, Any]) -> object:
    with torch.no_grad():
        return op.run(*arguments.values())


def _backward(op: Op, arguments: dict[str, Any]) -> Callable[[], object]:
    names = select_differentiable(op, arguments)
    leaves = make_leaves(arguments, names)
    inputs = [leaves[name] for name in names]
    results = outputs_of(op.run(*leaves.values()))
    outputs = [
        result
        for result, spec in zip(results, op.of_role("output", "saved"), strict=True)
        if spec.role == "output" and result.requires_grad and result.numel()
    ]
    grad_outputs = [torch.ones_like(output) for output in outputs]

    def run() -> object:
        return torch.autograd.grad(
            outputs, inputs, grad_outputs, retain_graph=True, allow_unused=True
        )

    return run
