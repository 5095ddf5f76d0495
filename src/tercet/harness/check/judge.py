"""Judge: what the results of a call say about the implementation that computed them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.harness.check.compare import compare
from tercet.harness.check.expected import Expected
from tercet.harness.finding import ErrorSummary, Finding
from tercet.harness.sandbox.promises import unlike_promised
from tercet.harness.sandbox.session import Outcome
from tercet.harness.workloads.gradients import describe_outputs
from tercet.kernel.contract import Op

Values = dict[str, Any]
_GRADIENT_OF = "gradient of "


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


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What one call says of one property; empty where it holds."""

    check: str
    message: str
    errors: tuple[ErrorSummary, ...] = ()


def judge_outcome(
    op: Op,
    prepared: Values,
    outcome: Outcome,
    expected: Expected,
    natives: list[Tensor] | None = None,
) -> list[Problem]:
    """Everything that a call's results say by themselves: the one judgement of every run.

    opcheck (dtypes, shapes and strides that the fakes promise), poison, forward, backward.

    Args:
        op, prepared: what was called, on what.
        outcome: what it gave; gradients are judged where it has any.
        expected: by the reference.
        natives: the outputs of plain torch in the op's own dtype, where there are any.
    """
    found: list[Problem] = []
    if outcome.promises:
        found.append(Problem(check="opcheck", message="; ".join(outcome.promises)))
    unlike = unlike_fake(op, prepared, [each.meta() for each in outcome.outputs])
    if unlike:
        return [*found, Problem(check="forward", message=unlike)]
    outputs = [each.value for each in outcome.outputs]
    gradients = {
        name: None if each is None else each.value for name, each in outcome.gradients.items()
    }
    verdicts = Verdicts("", "")

    def compare_all(names: Sequence[str]) -> tuple[ErrorSummary, ...]:
        some = {name: gradients[name] for name in names}
        return output_errors(op, outputs, expected, natives) + gradient_errors(op, some, expected)

    judge_results(verdicts, prepared, outputs, gradients, compare_all)
    wrong = {error.tensor for each in verdicts.findings for error in each.errors if error.worst > 1}
    poison = [
        name
        for name, output, right in zip(_names(op), outputs, expected.outputs, strict=True)
        # a code may be the poison of integers, and as far from the reference's as it is allowed to
        if _poisoned(output, right) and (output.dtype.is_floating_point or name in wrong)
    ]
    found.append(
        Problem(check="poison", message=listed("has elements that were never written", poison))
    )
    found += [
        Problem(check=each.check, message=each.message, errors=each.errors)
        for each in verdicts.findings
    ]
    return found


def judge_results(
    verdicts: Verdicts,
    prepared: Values,
    outputs: Sequence[Tensor] | None,
    gradients: Mapping[str, Tensor | None],
    compare_all: Callable[[Sequence[str]], tuple[ErrorSummary, ...]],
) -> bool:
    """Adds the findings forward and backward of one call; returns whether both are green.

    Args:
        verdicts: where to.
        prepared: the call's arguments.
        outputs: of the dtypes and shapes that the op's fake promises; None where only gradients
            are judged.
        gradients: by the argument's name; empty where only outputs are judged.
        compare_all: compares the outputs, and the gradients that it is given the names of.
    """
    problem = _unlike_inputs(prepared, gradients)
    errors = compare_all(() if problem else tuple(gradients))
    backward = tuple(error for error in errors if error.tensor.startswith(_GRADIENT_OF))
    if outputs is not None:
        forward = tuple(error for error in errors if error not in backward)
        verdicts.add("forward", _worst(forward), forward)
    if gradients:
        verdicts.add("backward", problem or _worst(backward), backward)
    return not problem and all(error.worst <= 1 for error in errors)


def unlike_fake(op: Op, prepared: Values, outputs: Sequence[Tensor]) -> str:
    """Which output has another dtype, shape or stride than the op's fake promises; or empty."""
    promised = describe_outputs(op, prepared)
    if len(promised) != len(outputs):
        return f"returned {len(outputs)} tensors, its fake promises {len(promised)}"
    for name, output, fake in zip(_names(op), outputs, promised, strict=True):
        if unlike := unlike_promised(output, fake):
            return f"{name} is of {unlike}"
    return ""


def output_errors(
    op: Op, outputs: Sequence[Tensor], expected: Expected, natives: list[Tensor] | None = None
) -> tuple[ErrorSummary, ...]:
    """How far each output with elements is from what is expected.

    Args:
        natives: the outputs of plain torch in the op's own dtype, where there are any.

    UnsupportedError where the reference's have other shapes, which torch would broadcast.
    """
    for name, output, right in zip(_names(op), outputs, expected.outputs, strict=True):
        if output.shape != right.shape:
            raise UnsupportedError(
                f"op {op.name!r}: its reference gives {name} {list(right.shape)}, its fake and the "
                f"implementation give {list(output.shape)}: make them alike"
            )
    return tuple(
        compare(
            name,
            output,
            right,
            magnitude,
            op.tolerance(output.dtype).relative,
            natives[at] if natives is not None and at < len(natives) else None,
            op.tolerance(output.dtype).inner,
            any_infinity=spec.role == "saved",
        )
        for at, (spec, name, output, right, magnitude) in enumerate(
            zip(
                op.of_role("output", "saved"),
                _names(op),
                outputs,
                expected.outputs,
                expected.magnitudes,
                strict=True,
            )
        )
        if output.numel()
    )


def gradient_errors(
    op: Op, gradients: Mapping[str, Tensor | None], expected: Expected
) -> tuple[ErrorSummary, ...]:
    """How far each gradient with elements is from what is expected."""
    return tuple(
        compare(
            f"{_GRADIENT_OF}{name}",
            gradient,
            expected.gradients[name],
            expected.gradient_magnitudes[name],
            op.tolerance(gradient.dtype).gradient_relative,
        )
        for name, gradient in gradients.items()
        if gradient is not None and gradient.numel()
    )


def _unlike_inputs(prepared: Values, gradients: Mapping[str, Tensor | None]) -> str:
    for name, gradient in gradients.items():
        argument = prepared[name]
        if gradient is None:
            return f"there is no gradient of {name}"
        if gradient.dtype != argument.dtype or gradient.shape != argument.shape:
            return (
                f"the gradient of {name} is {gradient.dtype} {list(gradient.shape)}, {name} is "
                f"{argument.dtype} {list(argument.shape)}"
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


def listed(what: str, names: Sequence[str]) -> str:
    """Names, each once, and what is wrong with them; empty where there are none."""
    return f"{', '.join(dict.fromkeys(names))} {what}" if names else ""


def joined(*messages: str) -> str:
    """What is wrong, one after the other; empty where nothing is."""
    return "; ".join(message for message in messages if message)
