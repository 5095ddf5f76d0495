"""Recheck: what was timed is compared with the reference once more, after timing.

Fresh inputs are copied to the addresses that were timed and the outputs are filled with NaN; then
the very graph that was timed is replayed. A result that was kept from an earlier call, an output
that the graph does not write, and work that the capture did not see all give wrong values here.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tercet.harness.bench.rotation import Copy, Rotation
from tercet.harness.bench.variant import Built, Cache, Launch, Results
from tercet.harness.check.at_scale import judge_workload
from tercet.harness.finding import ErrorSummary, Finding
from tercet.kernel.contract import Workload
from tercet.kernel.tuned import Direction


def recheck(
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
    indices = sorted({0, len(copies) // 2, len(copies) - 1})
    for at in {indices[0], indices[-1]}:
        (rotation.refresh if direction == "forward" else rotation.refresh_grad_outputs)(copies[at])
    results = _results_again(built, copies, indices, cache, launch)
    wrong, errors = list[str](), list[ErrorSummary]()
    for at, found in zip(indices, results, strict=True):
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
    built: Built, copies: Sequence[Copy], indices: Sequence[int], cache: Cache, launch: Launch
) -> list[Results]:
    block = built.blocks[cache, launch]
    if launch == "graph":
        kept = built.results[cache]
        for copy, results in zip(copies, kept, strict=True):
            poison(results, copy)
        block.run()
        return [kept[at] for at in indices]
    with block.around():
        return [built.calls[at]() for at in indices]


def poison(results: Results, copy: Copy) -> None:
    """Fills results with NaN (integers: -1), except those that are views of inputs."""
    inputs = {
        value.untyped_storage().data_ptr()
        for value in (*copy.prepared.values(), *copy.grad_outputs)
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
    forward = direction == "forward"
    return judge_workload(
        op,
        arguments,
        copy.prepared,
        [output for output in found if output is not None] if forward else None,
        {} if forward else present(names, found, copy),
        None if forward else copy.grad_outputs,
        implementation=built.variant.name,
        case=case,
    )


def present(names: Sequence[str], found: Results, copy: Copy) -> dict[str, Tensor]:
    """Gradients by name; one that autograd left out is zero."""
    pairs: Mapping[str, Tensor | None] = dict(zip(names, found, strict=True))
    return {
        name: torch.zeros_like(copy.prepared[name]) if gradient is None else gradient
        for name, gradient in pairs.items()
    }
