"""Which drawn cases an op's contract takes, and which of them have a gradient."""

import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import TercetError
from tercet.formats import PackedTensor
from tercet.harness.author_errors import reference_outputs
from tercet.harness.workloads.drawn import Drawn
from tercet.harness.workloads.gradients import (
    describe_outputs,
    draw_grad_outputs,
    make_leaves,
    select_differentiable,
    vjp,
)
from tercet.harness.workloads.limits import float_of
from tercet.kernel.contract import Implementation, Op, outputs_of
from tercet.kernel.select import using

_HEADROOM = 8  # of partial sums over the whole


def allowed(op: Op, drawn: Drawn) -> Drawn | None:
    """The case, if the op's contract takes its arguments: its fake, own checks and reference.

    Without a gradient where the op refuses one for these options.
    """
    try:
        arguments = drawn.arguments(op, 0)
        if drawn.powers and _overflows(op, drawn, arguments):
            return None
        prepared = op.prepare(arguments)
        promised = describe_outputs(op, prepared)
        kept = _called(op, drawn, prepared)
        with warnings.catch_warnings():
            # of arguments that it does not take
            warnings.simplefilter("ignore")
            # last: of sizes that the op refuses it may make something that is very large
            if kept is not None:
                kept = _kept_in_range(op, kept, promised, reference_outputs(op, arguments))
    except Exception:  # noqa: BLE001 whatever refuses them, they are no arguments
        return None
    return kept


def accepts(op: Op, prepared: dict[str, Any]) -> bool:
    """Whether the op's fake and its implementation in plain torch take these arguments."""
    try:
        describe_outputs(op, prepared)
        plain = _in_plain_torch(op, prepared)
        if plain is not None:
            with torch.no_grad(), using(op, plain.load()):
                op.run(*prepared.values())
    except TercetError:
        return False
    return True


def _overflows(op: Op, drawn: Drawn, arguments: dict[str, Any]) -> bool:
    """Whether numbers that were finite are infinite by the powers that they are multiplied by."""
    before = replace(drawn, powers={}).arguments(op, 0)
    return any(
        float_of(arguments[name]) is not None
        and _infinities(arguments[name]) > _infinities(before[name])
        for name in drawn.powers
    )


def _infinities(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(map(_infinities, cast("tuple[Any, ...]", value)))
    numbers = value.scale if isinstance(value, PackedTensor) else value
    return int(numbers.isinf().sum()) if isinstance(numbers, Tensor) else 0


def _kept_in_range(
    op: Op, drawn: Drawn, promised: tuple[Tensor, ...], expected: tuple[Tensor, ...]
) -> Drawn:
    """Without a gradient where what is saved for it is near the end of its range, or beyond.

    A sum that is kept in float16, say, until it is divided.
    """
    results = zip(op.of_role("output", "saved"), promised, expected, strict=True)
    beyond = any(
        spec.role == "saved"
        and fake.is_floating_point()
        and bool((right.abs() > torch.finfo(fake.dtype).max / _HEADROOM).any())
        for spec, fake, right in results
    )
    return replace(drawn, gradient=False) if beyond else drawn


def _in_plain_torch(op: Op, prepared: dict[str, Any]) -> Implementation | None:
    """The op's implementation in plain torch, where it has one that takes these arguments."""
    plain = [each for each in op.implementations if each.language == "torch"]
    return plain[-1] if plain and op.unfit(plain[-1], prepared) is None else None


def _called(op: Op, drawn: Drawn, prepared: dict[str, Any]) -> Drawn | None:
    """What is left of the case after a call of the op in plain torch."""
    plain = _in_plain_torch(op, prepared)
    if plain is None:
        return drawn
    names = select_differentiable(op, prepared)
    leaves = make_leaves(prepared, names)
    with using(op, plain.load()):
        try:
            outputs = outputs_of(op.run(*leaves.values()))
        except TercetError:
            return None
        except Exception:  # noqa: BLE001 the check will say so
            return drawn
        if not names:
            return drawn
        try:
            gradients = vjp(outputs, draw_grad_outputs(op, prepared, 0), leaves, names)
        except TercetError:
            return replace(drawn, gradient=False)
        except Exception:  # noqa: BLE001 the check will say so
            return drawn
    has_all = all(each is not None for each in gradients.values())
    return drawn if has_all else replace(drawn, gradient=False)


def arguments_of(op: Op, drawn: Drawn) -> dict[str, Any] | None:
    """The case's arguments; None for sizes that the op's inputs refuse."""
    try:
        return drawn.arguments(op, 0)
    except Exception:  # noqa: BLE001 whatever refuses them, they are no arguments
        return None


def takes(op: Op, drawn: Drawn) -> bool:
    """Whether the op's fake takes the arguments."""
    try:
        describe_outputs(op, op.prepare(drawn.arguments(op, 0)))
    except Exception:  # noqa: BLE001 whatever refuses them, they are no arguments
        return False
    return True
