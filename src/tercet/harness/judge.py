"""Judge: what one run of a case, as `execute` reports it, says about the implementation."""

from typing import Any

import torch
from torch import Tensor

from tercet.harness.compare import compare
from tercet.harness.expected import Expected
from tercet.harness.finding import ErrorSummary, Finding
from tercet.harness.gradients import described
from tercet.kernel.contract import Op

Values = dict[str, Any]


class Verdicts:
    """Collects findings about one implementation on one case."""

    def __init__(self, implementation: str, case: str) -> None:
        self._names = {"implementation": implementation, "case": case}
        self.findings: list[Finding] = []

    def add(self, check: str, message: str, errors: tuple[ErrorSummary, ...] = ()) -> None:
        """A finding; green where there is no message."""
        self.findings.append(
            Finding(**self._names, check=check, passed=not message, message=message, errors=errors)
        )


def judge(
    op: Op,
    verdicts: Verdicts,
    prepared: Values,
    report: Values,
    first: Expected,
    second: Expected | None,
    natives: list[Tensor] | None = None,
) -> None:
    """Adds what the report says: forward, backward, poison, stale, guard, inputs, ..."""
    right = _results(op, verdicts, prepared, report, first, natives)
    if second is not None and "second_outputs" in report:
        _later(op, verdicts, report, second, right)
    if report["promises"]:
        verdicts.add("opcheck", "; ".join(report["promises"]))
    verdicts.add("guard", "; ".join(report["guard"]))
    verdicts.add("inputs", _inputs(report))
    verdicts.add("determinism", _listed("differs between equal calls", report["unstable"]))
    verdicts.add("stale", _listed("was overwritten by a later call", report["overwritten"]))
    verdicts.add("state", _listed("was changed and not put back", report["state"]))


def _results(
    op: Op,
    verdicts: Verdicts,
    prepared: Values,
    report: Values,
    expected: Expected,
    natives: list[Tensor] | None,
) -> bool:
    outputs: list[Tensor] = report["outputs"]
    problem = _unlike(op, prepared, outputs)
    if problem:
        verdicts.add("forward", problem)
        return False
    errors = _output_errors(op, outputs, expected, natives)
    poison = [
        name
        for name, output, right in zip(_names(op), outputs, expected.outputs, strict=True)
        if _poisoned(output, right)
    ]
    verdicts.add("poison", _listed("has elements that were never written", poison))
    verdicts.add("forward", _worst(errors), errors)
    gradients: dict[str, Tensor | None] = report["gradients"]
    if gradients:
        problem = _unlike_inputs(prepared, gradients)
        found = () if problem else _gradient_errors(op, gradients, expected)
        verdicts.add("backward", problem or _worst(found), found)
        errors += found
    return all(error.worst <= 1 for error in errors)


def _later(
    op: Op, verdicts: Verdicts, report: Values, expected: Expected, first_right: bool
) -> None:
    """The second contents at the same addresses; wrong only there means that something was kept."""
    errors = _output_errors(op, report["second_outputs"], expected, None)
    errors += _gradient_errors(op, report["second_gradients"], expected)
    message = _worst(errors)
    if message and first_right:
        verdicts.add(
            "stale", f"right at first, wrong for new contents of the same memory: {message}"
        )
    elif message:
        verdicts.add("forward" if "gradient of" not in message else "backward", message, errors)


def _output_errors(
    op: Op, outputs: list[Tensor], expected: Expected, natives: list[Tensor] | None
) -> tuple[ErrorSummary, ...]:
    return tuple(
        compare(
            name,
            output,
            right,
            magnitude,
            op.tolerance(output.dtype).relative,
            natives[at] if natives is not None and at < len(natives) else None,
            op.tolerance(output.dtype).inner,
        )
        for at, (name, output, right, magnitude) in enumerate(
            zip(_names(op), outputs, expected.outputs, expected.magnitudes, strict=True)
        )
        if output.numel()
    )


def _gradient_errors(
    op: Op, gradients: dict[str, Tensor | None], expected: Expected
) -> tuple[ErrorSummary, ...]:
    return tuple(
        compare(
            f"gradient of {name}",
            gradient,
            expected.gradients[name],
            expected.gradient_magnitudes[name],
            op.tolerance(gradient.dtype).gradient_relative,
        )
        for name, gradient in gradients.items()
        if gradient is not None and gradient.numel()
    )


def wrong_results(
    op: Op, outputs: list[Tensor], gradients: dict[str, Tensor | None], expected: Expected
) -> str:
    """What is wrong with outputs and gradients, in words; empty when nothing is."""
    errors = _output_errors(op, outputs, expected, None)
    return _worst(errors + _gradient_errors(op, gradients, expected))


def _unlike(op: Op, prepared: Values, outputs: list[Tensor]) -> str:
    promised = described(op, prepared)
    if len(promised) != len(outputs):
        return f"returned {len(outputs)} tensors, its fake promises {len(promised)}"
    for name, output, fake in zip(_names(op), outputs, promised, strict=True):
        if output.dtype != fake.dtype or output.shape != fake.shape:
            return (
                f"{name} is {output.dtype} {list(output.shape)}, its fake promises {fake.dtype} "
                f"{list(fake.shape)}"
            )
    return ""


def _unlike_inputs(prepared: Values, gradients: dict[str, Tensor | None]) -> str:
    for name, gradient in gradients.items():
        given = prepared[name]
        if gradient is None:
            return f"there is no gradient of {name}"
        if gradient.dtype != given.dtype or gradient.shape != given.shape:
            return (
                f"the gradient of {name} is {gradient.dtype} {list(gradient.shape)}, {name} is "
                f"{given.dtype} {list(given.shape)}"
            )
    return ""


def _poisoned(output: Tensor, expected: Tensor) -> bool:
    """Whether an element still holds the poison of fresh memory, bit for bit."""
    poison = 0xFF if output.dtype.is_floating_point else 0x5A
    if not output.numel():
        return False
    octets = output.contiguous().view(-1).view(torch.uint8).view(-1, output.element_size())
    left = (octets == poison).all(-1)
    wanted = expected.to(left.device).flatten()
    # the poison of an integer may also be the right answer
    right = wanted.isnan() | (output.flatten().to(wanted.dtype) == wanted)
    return bool((left & ~right).any())


def _names(op: Op) -> list[str]:
    return [spec.name for spec in op.of_role("output", "saved")]


def _worst(errors: tuple[ErrorSummary, ...]) -> str:
    wrong = [error for error in errors if error.worst > 1]
    return "; ".join(str(error) for error in sorted(wrong, key=lambda error: -error.worst))


def _inputs(report: Values) -> str:
    changed = _listed("was written to", report["changed"])
    views = [f"output {at}" for at in report["views"]]
    return "; ".join(
        part for part in (changed, _listed("shares memory with an input", views)) if part
    )


def _listed(what: str, names: list[str]) -> str:
    return f"{', '.join(dict.fromkeys(names))} {what}" if names else ""
