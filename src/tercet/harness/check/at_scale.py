"""At scale: forward and backward at a production shape against float64, in chunks that fit memory.

Where calls are independent along an axis, the reference runs on chunks of it: outputs are compared
chunk by chunk, and the gradient of what all chunks share (a weight) is the sum over the chunks.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.check.compare import row_magnitude
from tercet.harness.check.expected import Expected, expect
from tercet.harness.check.judge import (
    Verdicts,
    gradient_errors,
    judge_results,
    listed,
    output_errors,
    unlike_fake,
)
from tercet.harness.finding import ErrorSummary, Finding
from tercet.harness.sandbox.session import Session
from tercet.harness.workloads.gradients import (
    draw_grad_outputs,
    make_leaves,
    select_differentiable,
    vjp,
)
from tercet.kernel.contract import Kernels, Op, TensorSpec, Workload, outputs_of
from tercet.kernel.select import using

Values = dict[str, Any]
_CHUNK_ELEMENTS = 1 << 26


def make_inputs(op: Op, workload: Workload, device: str, seed: int) -> Values:
    """The arguments of the op's reference for a workload. UnsupportedError where it makes none."""
    if op.inputs is None:
        raise UnsupportedError(
            f"op {op.name!r} makes no inputs for a given shape: give it `inputs` in op.py"
        )
    missing = [axis for axis in workload.sizes if axis not in {a.name for a in op.axes}]
    if missing:
        known = ", ".join(axis.name for axis in op.axes)
        raise UnsupportedError(f"op {op.name!r} has no axis {missing[0]!r}: it has {known}")
    return op.inputs(workload, seed, device)


def check_workload(
    op: Op,
    kernels: Kernels,
    workload: Workload,
    *,
    implementation: str,
    device: str,
    seed: int,
    gradient: bool = True,
) -> tuple[Finding, ...]:
    """Runs loaded kernels on a workload and compares every element, forward and backward.

    Args:
        op, kernels, workload: what to run, on which inputs.
        implementation: what to call the kernels in the findings.
        device, seed: where, and of the inputs.
        gradient: also the gradients.
    """
    arguments = make_inputs(op, workload, device, seed)
    prepared = op.prepare(arguments)
    names = select_differentiable(op, prepared) if gradient else ()
    grad_outputs = draw_grad_outputs(op, prepared, seed, device) if names else None
    outputs, gradients = _run(op, kernels, prepared, grad_outputs, names)
    return judge_workload(
        op,
        arguments,
        prepared,
        outputs,
        gradients,
        grad_outputs,
        implementation=implementation,
        case=f"{workload.name}: {workload}",
    )


def check_workload_apart(
    op: Op,
    session: Session,
    workload: Workload,
    *,
    implementation: str,
    device: str,
    seed: int,
    gradient: bool = True,
) -> tuple[Finding, ...]:
    """The same for what runs in a session: also what it wrote to, and how its results lie.

    ChildError where a call raised, or its process ended.
    """
    arguments = make_inputs(op, workload, device, seed)
    prepared = op.prepare(arguments)
    names = select_differentiable(op, prepared) if gradient else ()
    grad_outputs = draw_grad_outputs(op, prepared, seed, device) if names else None
    case = f"{workload.name}: {workload}"
    verdicts = Verdicts(implementation, case)
    session.begin()
    places = session.put(prepared)
    outcome = session.forward("call", places, names)
    if names and grad_outputs is not None:
        outcome = session.backward("call", session.put_incoming(grad_outputs), names)
    verdicts.add("inputs", listed("was written to", session.written()))
    verdicts.add("guard", "; ".join(session.broken()))
    unlike = unlike_fake(op, prepared, [each.meta() for each in outcome.outputs])
    absent = [name for name, each in outcome.gradients.items() if each is None]
    if unlike or absent:
        verdicts.add("forward", unlike)
        verdicts.add("backward", listed("has no gradient", absent))
        return tuple(verdicts.findings)
    return tuple(verdicts.findings) + judge_workload(
        op,
        arguments,
        prepared,
        [each.value for each in outcome.outputs],
        {name: each.value for name, each in outcome.gradients.items() if each is not None},
        grad_outputs,
        implementation=implementation,
        case=case,
    )


def judge_workload(
    op: Op,
    arguments: Values,
    prepared: Values,
    outputs: list[Tensor] | None,
    gradients: dict[str, Tensor],
    grad_outputs: list[Tensor | None] | None,
    *,
    implementation: str,
    case: str,
) -> tuple[Finding, ...]:
    """Compares results that were computed elsewhere.

    Args:
        op: of which op.
        arguments, prepared: what the reference takes, and what was called with.
        outputs: None where only gradients are judged.
        gradients: by the argument's name; empty where only outputs are judged.
        grad_outputs: the incoming gradient of each output; None where only outputs are judged.
        implementation, case: what to call them in the findings.
    """
    verdicts = Verdicts(implementation, case)
    problem = "" if outputs is None else unlike_fake(op, prepared, outputs)
    if problem:
        verdicts.add("forward", problem)
    else:

        def compare_all(names: Sequence[str]) -> tuple[ErrorSummary, ...]:
            some = {name: gradients[name] for name in names}
            return _compare_chunks(op, arguments, outputs, some, grad_outputs)

        judge_results(verdicts, prepared, outputs, gradients, compare_all)
    return tuple(verdicts.findings)


def _compare_chunks(
    op: Op,
    arguments: Values,
    outputs: list[Tensor] | None,
    gradients: dict[str, Tensor],
    grad_outputs: list[Tensor | None] | None,
) -> tuple[ErrorSummary, ...]:
    inputs = {spec.name: spec for spec in op.of_role("input")}
    results = op.of_role("output", "saved")
    shared = [name for name in gradients if _position(op, inputs[name]) is None]
    worst: dict[str, ErrorSummary] = {}
    sums: dict[str, Tensor] = {}
    for first, last in _chunks(op, arguments):
        chunk = {
            name: cut(op, inputs.get(name), value, first, last) for name, value in arguments.items()
        }
        some = [
            cut(op, spec, grad_output, first, last)
            for spec, grad_output in zip(
                results, grad_outputs or [None] * len(results), strict=True
            )
        ]
        right = expect(op, chunk, some if grad_outputs is not None else None, tuple(gradients))
        found = {
            name: cut(op, inputs[name], gradient, first, last)
            for name, gradient in gradients.items()
            if name not in shared
        }
        errors = gradient_errors(op, found, right)
        if outputs is not None:
            parts = [
                cut(op, spec, output, first, last)
                for spec, output in zip(results, outputs, strict=True)
            ]
            errors = output_errors(op, parts, right) + errors
        for summary in errors:
            _keep(worst, summary)
        for name in shared:
            gradient = right.gradients[name]
            sums[name] = sums[name] + gradient if name in sums else gradient
    total = Expected(
        outputs=(),
        magnitudes=(),
        gradients=sums,
        gradient_magnitudes={name: row_magnitude(gradient) for name, gradient in sums.items()},
    )
    for summary in gradient_errors(op, {name: gradients[name] for name in shared}, total):
        _keep(worst, summary)
    return tuple(worst.values())


def _run(
    op: Op,
    kernels: Kernels,
    prepared: Values,
    grad_outputs: list[Tensor | None] | None,
    names: tuple[str, ...],
) -> tuple[list[Tensor], dict[str, Tensor]]:
    values = make_leaves(prepared, names)
    with using(op, kernels):
        outputs = list(outputs_of(op.run(*values.values())))
        if grad_outputs is None:
            return outputs, {}
        found = vjp(outputs, grad_outputs, values, names, allow_unused=False)
    gradients = {name: gradient for name, gradient in found.items() if gradient is not None}
    if len(gradients) < len(names):
        raise UnsupportedError(
            f"no output of op {op.name!r} depends on {', '.join(names)}, which it calls "
            "differentiable: give its kernels a `gradient`"
        )
    return [output.detach() for output in outputs], gradients


def _position(op: Op, spec: TensorSpec) -> int | None:
    """Which dimension of a tensor is the independent axis."""
    axis = op.independent
    return spec.axes.index(axis) if axis is not None and axis in spec.axes else None


def _chunks(op: Op, arguments: Values) -> list[tuple[int, int | None]]:
    """First and last (excluded) place of each chunk of the independent axis."""
    length, width = 0, 1
    for spec in op.of_role("input"):
        value, at = arguments.get(spec.name), _position(op, spec)
        if at is not None and isinstance(value, Tensor) and value.dim() == len(spec.axes):
            length = value.shape[at]
            width = max(width, value.numel() // max(length, 1))
    step = max(1, _CHUNK_ELEMENTS // width)
    if length <= step:
        return [(0, None)]
    return [(first, min(first + step, length)) for first in range(0, length, step)]


def cut(op: Op, spec: TensorSpec | None, value: Any, first: int, last: int | None) -> Any:
    """Places first to last (excluded; None: all) of a tensor along the op's independent axis.

    One without any, as what an op saves only where it made it itself, stays as it is.
    """
    if last is None or spec is None or not isinstance(value, Tensor):
        return value
    at = _position(op, spec)
    if at is None or value.dim() != len(spec.axes) or not value.shape[at]:
        return value
    return value.narrow(at, first, last - first)


def _keep(worst: dict[str, ErrorSummary], summary: ErrorSummary) -> None:
    """The summary of the chunk with the largest error, with all chunks' counts."""
    known = worst.get(summary.tensor)
    if known is None:
        worst[summary.tensor] = summary
        return
    larger = summary if summary.worst > known.worst else known
    worst[summary.tensor] = larger.model_copy(
        update={
            "wrong": known.wrong + summary.wrong,
            "elements": known.elements + summary.elements,
            "largest": max(known.largest, summary.largest),
        }
    )
