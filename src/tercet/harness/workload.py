"""Workload: forward and backward at a production shape against float64, in pieces that fit memory.

Where calls are independent along an axis, the reference runs on pieces of it: outputs are compared
piece by piece, and the gradient of what all pieces share (a weight) is the sum over the pieces.
"""

from typing import Any

from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.compare import compare, row_magnitude
from tercet.harness.expected import expect
from tercet.harness.finding import ErrorSummary, Finding
from tercet.harness.gradients import as_leaves, directions, pull, wanted_gradients
from tercet.kernel.contract import Kernels, Op, TensorSpec, Workload, outputs_of
from tercet.kernel.select import using

Values = dict[str, Any]
_PIECE_ELEMENTS = 1 << 26


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
    names = wanted_gradients(op, prepared) if gradient else ()
    ways = directions(op, prepared, seed, device) if names else None
    outputs, gradients = _run(op, kernels, prepared, ways, names)
    return judge_workload(
        op,
        arguments,
        outputs,
        gradients,
        ways,
        implementation=implementation,
        case=f"{workload.name}: {workload}",
    )


def judge_workload(
    op: Op,
    arguments: Values,
    outputs: list[Tensor],
    gradients: dict[str, Tensor],
    ways: list[Tensor | None] | None,
    *,
    implementation: str,
    case: str,
) -> tuple[Finding, ...]:
    """Compares results that were computed elsewhere from these arguments."""
    names = tuple(gradients)
    inputs = {spec.name: spec for spec in op.of_role("input")}
    results = op.of_role("output", "saved")
    worst: dict[str, ErrorSummary] = {}
    sums: dict[str, Tensor] = {}
    for first, last in _pieces(op, arguments):
        piece = {
            name: cut(op, inputs.get(name), value, first, last) for name, value in arguments.items()
        }
        some = [
            cut(op, spec, way, first, last)
            for spec, way in zip(results, ways or [None] * len(outputs), strict=True)
        ]
        right = expect(op, piece, some if ways is not None else None, names)
        for at, spec in enumerate(results):
            found = cut(op, spec, outputs[at], first, last)
            if found.numel():
                limit = op.tolerance(found.dtype)
                summary = compare(
                    spec.name,
                    found,
                    right.outputs[at],
                    right.magnitudes[at],
                    limit.relative,
                    inner=limit.inner,
                )
                _keep(worst, summary)
        for name in names:
            if _position(op, inputs[name]) is None:
                sums[name] = sums[name] + right.gradients[name] if name in sums else (
                    right.gradients[name]
                )  # fmt: skip
            else:
                found = cut(op, inputs[name], gradients[name], first, last)
                size = right.gradient_magnitudes[name]
                _keep(worst, _gradient(op, name, found, right.gradients[name], size))
    for name, total in sums.items():
        _keep(worst, _gradient(op, name, gradients[name], total, row_magnitude(total)))
    return _findings(worst, implementation, case)


def _run(
    op: Op,
    kernels: Kernels,
    prepared: Values,
    ways: list[Tensor | None] | None,
    names: tuple[str, ...],
) -> tuple[list[Tensor], dict[str, Tensor]]:
    values = as_leaves(prepared, names)
    with using(op, kernels):
        outputs = list(outputs_of(op.run(*values.values())))
        if ways is None:
            return outputs, {}
        found = pull(outputs, ways, values, names, allow_unused=False)
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


def _pieces(op: Op, arguments: Values) -> list[tuple[int, int | None]]:
    """First and last (excluded) place of each piece of the independent axis."""
    length, width = 0, 1
    for spec in op.of_role("input"):
        value, at = arguments.get(spec.name), _position(op, spec)
        if at is not None and isinstance(value, Tensor) and value.dim() == len(spec.axes):
            length = value.shape[at]
            width = max(width, value.numel() // max(length, 1))
    step = max(1, _PIECE_ELEMENTS // width)
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


def _gradient(op: Op, name: str, found: Tensor, right: Tensor, size: Tensor) -> ErrorSummary:
    limit = op.tolerance(found.dtype).gradient_relative
    return compare(f"gradient of {name}", found, right, size, limit)


def _keep(worst: dict[str, ErrorSummary], summary: ErrorSummary) -> None:
    """The summary of the piece with the largest error, with all pieces' counts."""
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


def _findings(
    worst: dict[str, ErrorSummary], implementation: str, case: str
) -> tuple[Finding, ...]:
    findings = list[Finding]()
    for check in ("forward", "backward"):
        errors = tuple(
            summary
            for name, summary in worst.items()
            if name.startswith("gradient of ") == (check == "backward")
        )
        if errors:
            wrong = "; ".join(str(error) for error in errors if error.worst > 1)
            findings.append(
                Finding(
                    implementation=implementation,
                    case=case,
                    check=check,
                    passed=not wrong,
                    message=wrong,
                    errors=errors,
                )
            )
    return tuple(findings)
