"""Bench of one workload in one direction: copies, variants, graphs, rounds, and the recheck."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from tercet.harness.bench.apart import BuiltApart
from tercet.harness.bench.peer_error import off_by, too_far
from tercet.harness.bench.recheck import recheck
from tercet.harness.bench.rotation import Copy, Rotation, copies_needed
from tercet.harness.bench.row import Row
from tercet.harness.bench.variant import Built, Cache, Launch, Results, Variant
from tercet.harness.finding import Finding
from tercet.harness.sandbox.session import Apart
from tercet.harness.sandbox.try_run import Failure, try_run
from tercet.harness.timing.ceilings import Ceilings
from tercet.harness.timing.clock import Block, Timer, check_clock, clocks_agree, timing_on
from tercet.harness.timing.device_state import DeviceState, device_state, state_metrics
from tercet.harness.timing.interleave import interleave
from tercet.harness.timing.memory import (
    cache_bytes,
    free_bytes,
    give_back,
    kept_bytes,
    tensor_bytes,
)
from tercet.harness.timing.roofline import roofline
from tercet.harness.timing.sequential import Timed, time_sequentially
from tercet.harness.timing.statistics import Interval, median_interval
from tercet.harness.timing.threads import ThreadWatch
from tercet.harness.workloads.gradients import select_differentiable
from tercet.kernel.contract import Cost, Op, Workload
from tercet.kernel.tuned import Direction
from tercet.records import Outcome, Record

# A replay of a graph lasts at least about this long: its launch is hidden behind the one before.
_REPLAY_US = 200.0
_MOST_CALLS = 64  # unless there are more copies
_MOST_COMPARED = 64
_MOST_WARM = 64
_MOST_OF_ROOFLINE = {"memory": 1.2, "compute": 2.2}


@dataclass(frozen=True, kw_only=True)
class Session:
    """What all workloads of one bench share."""

    op: Op
    device: str
    seed: int
    ceilings: Ceilings
    caches: tuple[Cache, ...]
    launches: tuple[Launch, ...]
    seconds_per_row: float
    threads: ThreadWatch
    settle_seconds: float = 0.0  # more than 0: each variant by itself, after it has run for so long


@dataclass(kw_only=True)
class _Bench:
    """One workload and direction while it is timed."""

    session: Session
    workload: Workload
    direction: Direction
    rotation: Rotation
    names: tuple[str, ...]
    cost: Cost
    timer: Timer
    stream: Any
    state: DeviceState | None
    first_seed: int
    built: list[Built] = field(default_factory=list[Built])
    copy_extra_bytes: int = 0
    records: list[Record] = field(default_factory=list[Record])
    findings: list[Finding] = field(default_factory=list[Finding])

    def row(self, name: str, cache: Cache | None = None, launch: Launch | None = None) -> Row:
        return Row(
            op=self.session.op,
            workload=self.workload,
            variant=name,
            direction=self.direction,
            cache=cache,
            launch=launch,
            settled=self.session.settle_seconds > 0,
        )

    def refuse(self, row: Row, outcome: Outcome, reason: str) -> None:
        self.records.append(row.refused(outcome, reason))


def bench_direction(
    session: Session, workload: Workload, direction: Direction, variants: Sequence[Variant]
) -> tuple[list[Record], list[Finding]]:
    """The rows of these variants, and what was found of the judged ones.

    Args:
        session: the bench.
        workload, direction: of which call.
        variants: implementations that passed the check, and baselines.
    """
    op = session.op
    with timing_on(session.device) as (timer, stream):
        rotation = Rotation(
            op, workload, session.seed, session.device, gradient=direction == "backward"
        )
        prepared = rotation.copies[0].prepared
        names = select_differentiable(op, prepared) if direction == "backward" else ()
        if direction == "backward" and (not names or op.gradient_cost is None):
            return [], []
        cost_of = op.gradient_cost if direction == "backward" and op.gradient_cost else op.cost
        run = _Bench(
            session=session,
            workload=workload,
            direction=direction,
            rotation=rotation,
            names=names,
            cost=cost_of(prepared),
            timer=timer,
            stream=stream,
            state=device_state(session.device),
            first_seed=rotation.copies[0].seed,
        )
        for variant in variants:
            _build(run, variant)
        caches = _copies(run)
        for cache in caches:
            for launch in session.launches:
                _time(run, cache, launch)
        return run.records, run.findings


def _build(run: _Bench, variant: Variant) -> None:
    """Runs the variant on the first copy; an implementation that writes to it is not timed.

    A baseline that does (some write gradients over what the forward saved) works on clones.
    """
    session, first, case = run.session, run.rotation.copies[0], str(run.workload)
    if run.direction == "backward" and not variant.differentiable:
        run.refuse(run.row(variant.name), Outcome.FAILED, "has no gradient of its own")
        return
    built, extra = _first_call(run, variant, private=False)
    changed = run.rotation.changed(first)
    if changed:
        run.rotation.restore(first)
    if changed and not variant.judged:
        built, extra = _first_call(run, variant, private=True)
    if isinstance(extra, Failure):
        run.refuse(run.row(variant.name), Outcome.FAILED, extra.reason)
        return
    if variant.judged:
        findings = [session.threads.finding(variant.name, case)]
        if changed:
            findings.append(_inputs_written(variant.name, case, changed))
        run.findings += findings
        if wrong := [finding for finding in findings if not finding.passed]:
            reason = f"{wrong[0].check}: {wrong[0].message}"
            run.refuse(run.row(variant.name), Outcome.WRONG, reason)
            return
    run.copy_extra_bytes += extra
    run.built.append(built)


def _first_call(run: _Bench, variant: Variant, private: bool) -> tuple[Built, int | Failure]:
    """The variant on the first copy, and the bytes that it holds for each, or why it failed."""
    device, first = run.session.device, run.rotation.copies[0]
    built = Built(variant=variant, private=private)

    def first_call() -> int:
        nonlocal built
        if variant.place is not None:
            built = _built_apart(run, variant, variant.place)
        held = kept_bytes(lambda: _add_copies(run, built, [first]), device)
        results = built.first_call(device)
        _compare(run, built, results)
        # On a CPU nothing tells the peak; what the results take is the least.
        return held + (built.peak_bytes or tensor_bytes(results))

    if variant.judged:
        extra = try_run(first_call)
        return built, extra
    with run.session.threads.allowing():
        return built, try_run(first_call, variant.explain)


def _built_apart(run: _Bench, variant: Variant, place: Apart) -> BuiltApart:
    return BuiltApart(
        variant=variant,
        place=place,
        op=run.session.op,
        workload=run.workload,
        direction=run.direction,
        names=run.names,
        rotation=run.rotation,
        device=run.session.device,
    )


def _add_copies(run: _Bench, built: Built, copies: Sequence[Copy]) -> None:
    """Calls on these copies too, prepared in the variant's own way where it has one."""
    prepare = built.variant.prepare
    if prepare is not None:
        copies = [run.rotation.remake(copy, prepare) for copy in copies]
    built.add_copies(copies, run.direction, run.names)


def _compare(run: _Bench, built: Built, results: Results) -> None:
    """Keeps how far a baseline is from the reference; UnsupportedError beyond its tolerance."""
    limit = built.variant.tolerance
    if limit is None or run.direction == "backward":
        return
    arguments = run.rotation.arguments(run.first_seed)
    built.relative_error = off_by(run.session.op, arguments, results)
    too_far(built.relative_error, limit)


def _copies(run: _Bench) -> list[Cache]:
    """Draws the copies that cold times need, prepares every block; the caches that can be timed."""
    session, caches = run.session, list(run.session.caches)
    count: int | str = 1
    if "cold" in caches and run.built:
        copy_bytes = run.rotation.copies[0].size_bytes
        each = max(1, copy_bytes + run.copy_extra_bytes)
        room = 1 + free_bytes(session.device) // each
        count = copies_needed(copy_bytes, cache_bytes(session.device), room)
        if isinstance(count, str):
            for built in run.built:
                for launch in session.launches:
                    row = run.row(built.variant.name, "cold", launch)
                    run.refuse(row, Outcome.FAILED, count)
            caches.remove("cold")
            count = 1
    warm = _warm_copies(run)
    run.rotation.grow(max(count, warm))
    floor_us = roofline(run.cost, session.ceilings, run.workload.dtype).floor_us
    least = min(_MOST_CALLS, max(1, ceil(_REPLAY_US / max(floor_us, 1e-3))))
    for built in list(run.built):
        failed = try_run(lambda built=built: _add_copies(run, built, run.rotation.copies[1:]))
        if isinstance(failed, Failure):
            run.refuse(run.row(built.variant.name), Outcome.FAILED, failed.reason)
            run.built.remove(built)
            continue
        # Plain calls first: a capture that fails may leave the GPU's memory pools in use.
        for launch in sorted(session.launches):
            for cache in caches:
                _prepare(run, built, cache, launch, least, warm)
    return caches


def _warm_copies(run: _Bench) -> int:
    """How many copies warm calls go round: one, or what fits in half of the cache.

    A candidate's process is to have other contents in each call, and all are timed alike.
    """
    if not run.built or all(built.variant.place is None for built in run.built):
        return 1
    fit = cache_bytes(run.session.device) // 2 // max(run.rotation.copies[0].size_bytes, 1)
    return max(1, min(fit, _MOST_WARM))


def _prepare(
    run: _Bench, built: Built, cache: Cache, launch: Launch, least: int, warm: int
) -> None:
    failed = try_run(lambda: built.prepare(cache, launch, least, run.stream, warm=warm))
    if isinstance(failed, Failure):
        reason = f"cannot be captured in a CUDA graph: {failed.reason}"
        run.refuse(run.row(built.variant.name, cache, launch), Outcome.FAILED, reason)


def _time(run: _Bench, cache: Cache, launch: Launch) -> None:
    """Times all variants, then looks at each of the judged once more."""
    session = run.session
    group = [built for built in run.built if (cache, launch) in built.blocks]
    blocks = [built.blocks[cache, launch] for built in group]
    measured = try_run(lambda: _measure(run, blocks))
    if isinstance(measured, Failure):
        for built in group:
            reason = f"one of the variants failed while all were timed: {measured.reason}"
            run.refuse(run.row(built.variant.name, cache, launch), Outcome.FAILED, reason)
        return
    before, run.state = run.state, device_state(session.device)
    case = str(run.workload)
    changed = _changed_copies(run)
    for built, one in zip(group, measured, strict=True):
        interval = median_interval(one.samples)
        name, row = built.variant.name, run.row(built.variant.name, cache, launch)
        found = _after_timing(run, built, interval, cache, launch) if built.variant.judged else []
        if built.variant.judged and changed:
            found.append(_inputs_written(name, case, changed))
        if built.variant.judged and cache == "cold":
            found.append(_within_roofline(run, name, case, interval))
        run.findings += found
        if wrong := [finding for finding in found if not finding.passed]:
            run.refuse(row, Outcome.WRONG, f"{wrong[0].check}: {wrong[0].message}")
            continue
        if reason := _off_after_timing(run, built, cache, launch):
            run.refuse(row, Outcome.FAILED, reason)
            continue
        error = {} if built.relative_error is None else {"relative_error": built.relative_error}
        state = state_metrics(before, run.state) if one.state is None else state_metrics(one.state)
        run.records.append(
            row.timed(
                interval,
                run.cost,
                session.ceilings,
                peak_bytes=built.peak_bytes,
                state={**state, **error},
            )
        )


def _measure(run: _Bench, blocks: Sequence[Block]) -> list[Timed]:
    """In turn, so that whatever the device does meets all alike; or one after the other."""
    session = run.session
    if session.settle_seconds:
        return time_sequentially(
            run.timer, blocks, session.settle_seconds, lambda: device_state(session.device)
        )
    samples = interleave(run.timer, blocks, session.seconds_per_row)
    return [Timed(samples=each, state=None) for each in samples]


def _within_roofline(run: _Bench, name: str, case: str, interval: Interval) -> Finding:
    """Finding "roofline": whether a cold time is one that this machine allows.

    Ceilings are measured: a copy's bandwidth, which reading alone exceeds a little, and 16-bit
    products, of which formats of eight bits allow twice as many.
    """
    floor = roofline(run.cost, run.session.ceilings, run.workload.dtype)
    most = _MOST_OF_ROOFLINE[floor.binds]
    fraction = floor.fraction(interval.median)
    message = (
        f"{interval.median:.3g} us is {fraction:.2f} of what this machine's {floor.binds} allows "
        f"({floor.floor_us:.3g} us), and {most:g} is the most that is believed: part of the work "
        "was not done in the timed calls, or the op's `cost` counts too much"
    )
    return Finding(
        implementation=name,
        case=case,
        check="roofline",
        passed=fraction <= most,
        message="" if fraction <= most else message,
    )


def _off_after_timing(run: _Bench, built: Built, cache: Cache, launch: Launch) -> str | None:
    """Why the very results that a baseline's graph wrote while it was timed do not count.

    Only of one with copies of its own: a recheck changes what the others share.
    """
    if built.variant.prepare is None or launch != "graph":
        return None
    failed = try_run(lambda: _compare(run, built, built.results[cache][0]))
    return failed.reason if isinstance(failed, Failure) else None


def _after_timing(
    run: _Bench, built: Built, interval: Interval, cache: Cache, launch: Launch
) -> list[Finding]:
    session, name, case = run.session, built.variant.name, str(run.workload)
    block = built.blocks[cache, launch]

    def look_again() -> list[Finding]:
        give_back(session.device)
        if isinstance(built, BuiltApart):
            return built.findings(cache, launch)
        agree = clocks_agree(run.timer, block, interval.median, name, case)
        threads = session.threads.finding(name, case)
        again = recheck(
            run.workload,
            run.rotation,
            built,
            direction=run.direction,
            names=run.names,
            cache=cache,
            launch=launch,
        )
        return [agree, threads, again]

    found = try_run(look_again)
    if isinstance(found, Failure):
        message = f"failed after it was timed: {found.reason}"
        found = [
            Finding(implementation=name, case=case, check="stale", passed=False, message=message)
        ]
    return [*found, check_clock(name, case)]


def _changed_copies(run: _Bench) -> tuple[str, ...]:
    """Inputs that were written to while all ran; of very many copies, some are looked at."""
    copies = run.rotation.copies
    names = list[str]()
    for copy in copies[:: ceil(len(copies) / _MOST_COMPARED)]:
        if changed := run.rotation.changed(copy):
            names += changed
            run.rotation.restore(copy)
    return tuple(dict.fromkeys(names))


def _inputs_written(name: str, case: str, changed: Sequence[str]) -> Finding:
    return Finding(
        implementation=name,
        case=case,
        check="inputs",
        passed=False,
        message=f"a timed call wrote to its inputs: {', '.join(changed)}",
    )
