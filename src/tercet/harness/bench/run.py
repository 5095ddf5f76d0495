"""Bench: times implementations and baselines of an op side by side, and verifies what it timed.

An implementation is timed only where `check_workload` is green, and its timed buffers are compared
with the reference once more afterwards. All variants of a workload run interleaved, or, where a
clock has to settle to each, one after the other. "cold" rotates
over inputs that exceed the last-level cache three times, "warm" repeats one call; "graph" replays a
CUDA graph, "eager" makes plain calls. On a CPU there are eager times only.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from pydantic import BaseModel, ConfigDict

from tercet.child_process import ChildError
from tercet.errors import UnsupportedError
from tercet.harness.bench import timed_calls
from tercet.harness.bench.baselines import (
    baseline_names,
    find_baseline,
    load_baseline,
    missing_package,
)
from tercet.harness.bench.direction import Session, bench_direction
from tercet.harness.bench.row import Row
from tercet.harness.bench.variant import Cache, Launch, Variant
from tercet.harness.check.at_scale import check_workload, check_workload_apart
from tercet.harness.finding import Finding
from tercet.harness.sandbox.faults import fault_finding
from tercet.harness.sandbox.session import Apart
from tercet.harness.sandbox.session import Session as GuestSession
from tercet.harness.sandbox.try_run import Failure, try_run
from tercet.harness.seed import draw_seed
from tercet.harness.timing.ceilings import Ceilings, ceilings, copy_bandwidth
from tercet.harness.timing.clock import check_clock
from tercet.harness.timing.memory import free_bytes, give_back
from tercet.harness.timing.threads import ThreadWatch
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel.contract import Implementation, Kernels, Op, Workload, outputs_of
from tercet.kernel.select import using
from tercet.kernel.tuned import Direction
from tercet.records import Outcome, Record

SECONDS_PER_ROW = 1.0
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
CACHES: tuple[Cache, ...] = ("cold", "warm")
LAUNCHES: tuple[Launch, ...] = ("graph", "eager")


class BenchReport(BaseModel):
    """What a bench measured and found.

    Attributes:
        op, device: what was timed, where.
        seed: gives the same inputs again.
        ceilings: what the roofline stands on; the copy bandwidth is of this run.
        records: one per workload, variant, direction, cache and launch, of kind "bench".
        findings: of each implementation, before and after timing; green ones too.
        not_guaranteed: what the process of a candidate could do, because of the platform.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    device: str
    seed: int
    ceilings: Ceilings
    records: tuple[Record, ...]
    findings: tuple[Finding, ...]
    not_guaranteed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong. A baseline that is not installed is no fault of the op."""
        return not self.faults and all(r.outcome is not Outcome.WRONG for r in self.records)

    @property
    def timed(self) -> bool:
        """Whether any time was measured."""
        return any(record.outcome is Outcome.OK for record in self.records)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if not finding.passed)


def bench(
    op: Op,
    workloads: Iterable[Workload],
    *,
    implementations: Sequence[str] | None = None,
    baselines: bool | Sequence[str] = True,
    directions: Sequence[Direction] = DIRECTIONS,
    caches: Sequence[Cache] = CACHES,
    launches: Sequence[Launch] = LAUNCHES,
    device: str | None = None,
    seed: int | None = None,
    seconds_per_row: float = SECONDS_PER_ROW,
    settle_seconds: float = 0.0,
    candidate: Implementation | None = None,
    location: str | None = None,
    keep: Callable[[Sequence[Record]], None] | None = None,
) -> BenchReport:
    """Times an op.

    Args:
        op, workloads: what, on which calls.
        implementations: names; None for all that may run on the device. Empty for none.
        baselines: all, none, or names; "compile" is torch.compile of the first.
        directions, caches, launches: which times; a CPU has no graphs.
        device: "cuda" or "cpu"; None for a GPU where there is one.
        seed: of the inputs; None for a fresh one.
        seconds_per_row: about what each row may take; it ends sooner once its median is known to
            0.5 %.
        settle_seconds: more than 0 times each variant by itself, after it has run for so long: at
            the clock that its own power allows, which products of many rows on a GPU differ in.
        candidate: judged and timed beside the rest, in a process of its own (see `apart`).
        location: the path of the op's folder, where it lies outside the package.
        keep: gets the records of each workload as soon as they are measured, so that a run that is
            cut off loses no more than one.

    Raises:
        UnsupportedError: for unknown names, and an op that draws no inputs.
    """
    if op.inputs is None:
        raise UnsupportedError(
            f"op {op.name!r} draws no inputs for a workload: give its Op `inputs`"
        )
    where = device_or_best(device)
    known = ceilings(where)
    session = Session(
        op=op,
        device=where,
        seed=draw_seed() if seed is None else seed,
        ceilings=known.model_copy(update={"copy_bytes_per_second": copy_bandwidth(where)}),
        caches=tuple(caches),
        launches=tuple(name for name in launches if where != "cpu" or name == "eager"),
        seconds_per_row=seconds_per_row,
        settle_seconds=settle_seconds,
        threads=ThreadWatch(),
    )
    records, findings = list[Record](), list[Finding]()
    place = None
    if candidate is not None:
        with session.threads.allowing():
            place = _place(location or op.name, candidate, where)
    try:
        for workload in workloads:
            judged = _implementations(op, workload, where, implementations)
            names = baseline_names(op, baselines, where)
            timed, found = _workload(
                session, workload, judged, place, names, _directions(op, directions)
            )
            records += timed
            findings += found
            if keep is not None:
                keep(timed)
    finally:
        if place is not None:
            place.close()
    return BenchReport(
        op=op.name,
        device=where,
        seed=session.seed,
        ceilings=session.ceilings,
        records=tuple(records),
        findings=tuple(findings),
        not_guaranteed=() if place is None else place.missing,
    )


def _place(op: str, candidate: Implementation, device: str) -> Apart:
    """The process of a candidate, with room for many copies of large inputs."""
    arena = None if device == "cpu" else free_bytes(device) // 3
    return Apart(
        op, candidate.name, candidate.module, device, memory_bytes=None, arena_bytes=arena,
        threads=torch.get_num_threads(), first=(timed_calls.__name__,),
    )  # fmt: skip


def _workload(
    session: Session,
    workload: Workload,
    judged: Sequence[Implementation],
    place: Apart | None,
    baselines: Sequence[str],
    directions: Sequence[Direction],
) -> tuple[list[Record], list[Finding]]:
    """The records of one workload, and what was found of the judged before and after timing."""
    op, backward = session.op, "backward" in directions
    records, findings, variants = list[Record](), list[Finding](), list[Variant]()
    gates = {one.name: partial(_gate, session, workload, one, backward) for one in judged}
    if place is not None:
        gates[place.name] = partial(_gate_apart, session, workload, place, backward)
    for name, gate in gates.items():
        loaded, checked = gate()
        findings += checked
        if isinstance(loaded, Variant):
            variants.append(loaded)
        else:
            records += _refused(op, workload, name, directions, loaded)
    for name in baselines:
        loaded = _baseline(op, name)
        if isinstance(loaded, Variant):
            variants.append(loaded)
        else:
            records += _refused(op, workload, name, directions, (Outcome.FAILED, loaded.reason))
    for direction in directions:
        give_back(session.device)
        timed = try_run(partial(bench_direction, session, workload, direction, variants))
        if isinstance(timed, Failure):
            for variant in variants:
                why = (Outcome.FAILED, timed.reason)
                records += _refused(op, workload, variant.name, [direction], why)
            continue
        records += timed[0]
        findings += timed[1]
    return records, findings


def _directions(op: Op, wanted: Sequence[Direction]) -> tuple[Direction, ...]:
    """Of those that are wanted, the ones that the op has."""
    backward = bool(op.differentiable) and op.gradient_cost is not None
    return tuple(each for each in wanted if each == "forward" or backward)


def _implementations(
    op: Op,
    workload: Workload,
    device: str,
    names: Sequence[str] | None,
) -> list[Implementation]:
    context = op.context(workload, device)
    if names is not None:
        return [op.implementation(name) for name in names]
    return [each for each in op.implementations if each.requirement.unmet(context) is None]


def _gate(
    session: Session, workload: Workload, implementation: Implementation, gradient: bool
) -> tuple[Variant | tuple[Outcome, str], tuple[Finding, ...]]:
    """The implementation as a variant where it is right, else why it is not timed."""
    op, name = session.op.held_to(implementation), implementation.name
    context = op.context(workload, session.device)
    missing = implementation.requirement.unmet(context)
    if missing is not None:
        return (Outcome.FAILED, missing), ()
    kernels = try_run(implementation.load)
    if isinstance(kernels, Failure):
        return (Outcome.FAILED, kernels.reason), ()
    findings = try_run(
        lambda: check_workload(
            op,
            kernels,
            workload,
            implementation=name,
            device=session.device,
            seed=session.seed,
            gradient=gradient and kernels.gradient is not None,
        )
    )
    if isinstance(findings, Failure):
        return (Outcome.FAILED, findings.reason), ()
    case = str(workload)
    findings = (*findings, check_clock(name, case), session.threads.finding(name, case))
    return _wrong(findings) or _variant(op, name, kernels), findings


def _gate_apart(
    session: Session, workload: Workload, place: Apart, gradient: bool
) -> tuple[Variant | tuple[Outcome, str], tuple[Finding, ...]]:
    """The same for a candidate: it is loaded, called and timed in its own process."""
    op, name = session.op, place.name
    try:
        with session.threads.allowing():
            has_gradient = bool(place.call(f"{timed_calls.__name__}:has_gradient"))
        findings = check_workload_apart(
            op,
            GuestSession(place),
            workload,
            implementation=name,
            device=session.device,
            seed=session.seed,
            gradient=gradient and has_gradient,
        )
    except ChildError as error:
        finding = fault_finding(error, name, str(workload))
        return (Outcome.FAILED, finding.message), (finding,)
    variant = Variant(name=name, judged_as=op, differentiable=has_gradient, place=place)
    return _wrong(findings) or variant, findings


def _wrong(findings: Sequence[Finding]) -> tuple[Outcome, str] | None:
    wrong = [finding for finding in findings if not finding.passed]
    return (Outcome.WRONG, f"{wrong[0].check}: {wrong[0].message}") if wrong else None


def _variant(op: Op, name: str, kernels: Kernels) -> Variant:
    return Variant(
        name=name,
        call=lambda prepared: outputs_of(op.run(*prepared.values())),
        around=lambda: using(op, kernels),
        judged_as=op,
        differentiable=kernels.gradient is not None,
    )


def _baseline(op: Op, name: str) -> Variant | Failure:
    def explain(error: ImportError) -> str:
        return missing_package(op, name, error)

    baseline = find_baseline(op, name)
    loaded = try_run(lambda: (load_baseline(op, name), baseline.preparation(op)), explain)
    if isinstance(loaded, Failure):
        return loaded
    call, prepare = loaded
    return Variant(
        name=name,
        call=call,
        explain=explain,
        prepare=None if baseline.prepare is None else prepare,
        tolerance=baseline.tolerance,
    )


def _refused(
    op: Op,
    workload: Workload,
    name: str,
    directions: Sequence[Direction],
    why: tuple[Outcome, str],
) -> list[Record]:
    return [
        Row(op=op, workload=workload, variant=name, direction=direction).refused(*why)
        for direction in directions
    ]
