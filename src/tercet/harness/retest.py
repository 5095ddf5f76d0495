"""Retest: what was timed is compared with the reference once more, after timing.

Fresh inputs are copied to the addresses that were timed and the outputs are filled with NaN; then
the very graph that was timed is replayed. A result that was kept from an earlier call, an output
that the graph does not write, and work that the capture did not see all give wrong values here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tercet.harness.finding import ErrorSummary, Finding
from tercet.harness.rotation import Copy, Rotation
from tercet.harness.variant import Built, Cache, Launch, Results
from tercet.harness.workload import judge_workload
from tercet.kernel.contract import Workload
from tercet.kernel.tuned import Direction


def retest(
    workload: Workload,
    rotation: Rotation,
    built: Built,
    *,
    direction: Direction,
    names: Sequence[str],
    cache: Cache,
    launch: Launch,
) -> Finding:
    """Finding "stale": whether the timed calls give the right results for inputs that are new.

    The first and the last copy get new contents (in a backward: new incoming gradients, since what
    the forward saved stays); one between keeps its own.
    """
    copies = rotation.copies if cache == "cold" else rotation.copies[:1]
    places = sorted({0, len(copies) // 2, len(copies) - 1})
    for at in {places[0], places[-1]}:
        (rotation.refresh if direction == "forward" else rotation.refresh_ways)(copies[at])
    results = _results_again(built, copies, places, cache, launch)
    wrong, errors = list[str](), list[ErrorSummary]()
    for at, found in zip(places, results, strict=True):
        copy = copies[at]
        for finding in _judge(workload, rotation, copy, found, direction, names, built):
            errors += finding.errors
            if not finding.passed:
                wrong.append(f"copy {at} of {len(copies)}: {finding.message}")
    message = (
        f"wrong after timing ({direction}, {cache}, {launch}) on inputs that are new at the timed "
        f"addresses: {'; '.join(wrong)}"
    )
    return Finding(
        implementation=built.variant.name,
        case=str(workload),
        check="stale",
        passed=not wrong,
        message=message if wrong else "",
        errors=tuple(errors),
    )


def _results_again(
    built: Built, copies: Sequence[Copy], places: Sequence[int], cache: Cache, launch: Launch
) -> list[Results]:
    block = built.blocks[cache, launch]
    if launch == "graph":
        kept = built.results[cache]
        for copy, results in zip(copies, kept, strict=True):
            poison(results, copy)
        block.run()
        return [kept[at] for at in places]
    with block.around():
        return [built.calls[at]() for at in places]


def poison(results: Results, copy: Copy) -> None:
    """Fills results with NaN (integers: -1), except those that are views of inputs."""
    inputs = {
        value.untyped_storage().data_ptr()
        for value in (*copy.prepared.values(), *copy.ways)
        if isinstance(value, Tensor)
    }
    for result in results:
        if result is None or result.untyped_storage().data_ptr() in inputs:
            continue
        if result.is_floating_point() and result.element_size() > 1:
            result.detach().fill_(torch.nan)
        elif result.element_size() == 1:
            result.detach().view(torch.uint8).fill_(0xFF)
        else:
            result.detach().fill_(-1)


def _judge(
    workload: Workload,
    rotation: Rotation,
    copy: Copy,
    found: Results,
    direction: Direction,
    names: Sequence[str],
    built: Built,
) -> tuple[Finding, ...]:
    op = built.variant.judged_as
    assert op is not None, "only what is judged is tested again"
    arguments = rotation.arguments(copy.seed)
    case = str(workload)
    if direction == "forward":
        outputs = [output for output in found if output is not None]
        return judge_workload(
            op, arguments, outputs, {}, None, implementation=built.variant.name, case=case
        )
    # The outputs are judged in the forward's turn: here they have no elements to compare.
    specs = op.of_role("output", "saved")
    absent = [torch.empty((0,) * (len(spec.axes) + 1)) for spec in specs]
    return judge_workload(
        op,
        arguments,
        absent,
        _present(names, found, copy),
        copy.ways,
        implementation=built.variant.name,
        case=case,
    )


def _present(names: Sequence[str], found: Results, copy: Copy) -> dict[str, Tensor]:
    """Gradients by name; one that autograd left out is zero."""
    pairs: Mapping[str, Tensor | None] = dict(zip(names, found, strict=True))
    return {
        name: torch.zeros_like(copy.prepared[name]) if gradient is None else gradient
        for name, gradient in pairs.items()
    }
