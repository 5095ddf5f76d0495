"""Regress: whether a version is slower, larger or uses more of the GPU than another.

`compare` takes committed records of bench and compile; `compare_rounds` what two git revisions took
when they were timed in turn. Times are judged under the noise model of harness/regress/noise.py;
memory and compiled resources repeat exactly, and are judged by the steps in which hardware gives
them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

from tercet.errors import UnsupportedError
from tercet.harness.former_names import use_current_names
from tercet.harness.regress.noise import (
    LEAST,
    Difference,
    Interval,
    Noise,
    between_intervals,
    between_rounds,
    noise_of,
)
from tercet.harness.regress.report import Change, RegressReport, Verdict
from tercet.ops.discover import discover
from tercet.records import Outcome, Record

Key = tuple[tuple[str, str], ...]

# without a second run of the baseline, nothing tells how far two days of one machine lie apart
_LEAST_WITHOUT_NOISE = 0.05
# of other libraries: one or two may be alike by luck
_FEWEST_PEERS = 3
# registers are given out by eight a thread, shared memory by the KiB, device memory by 2 MiB
_STEPS = {"registers": 8, "shared_bytes": 1024, "spills": 1, "peak_memory_bytes": 2**21}
# a slow-down that has to be found
_WANTED = 1.08
_TIMING = ("cache", "launch")
_INSTRUCTIONS = ("wgmma", "tcgen05", "mfma", "mma")


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """One row timed in turn in both revisions: seconds of each round.

    Attributes:
        op, row: which.
        before, after: of revision A and of revision B.
        again: of revision A in another process.
    """

    op: str
    row: str
    before: Sequence[float]
    after: Sequence[float]
    again: Sequence[float]


def join_rounds(parts: Sequence[Rounds]) -> Rounds:
    """One row's rounds of several passes, each in new processes."""
    return Rounds(
        op=parts[0].op,
        row=parts[0].row,
        before=[time for part in parts for time in part.before],
        after=[time for part in parts for time in part.after],
        again=[time for part in parts for time in part.again],
    )


def compare(
    baseline: list[Record], current: list[Record], again: list[Record] | None = None
) -> RegressReport:
    """The current records against the baseline's.

    Args:
        baseline: bench and compile records of one device; of equal rows the last one counts.
        current: the same of another version, same device.
        again: the baseline's version measured a second time, which shows the noise. Without it,
            three or more rows of other libraries (the same code in both) show it; without those,
            differences of times under 5 % are ignored.

    Raises:
        UnsupportedError: nothing to compare, or records of different devices.
    """
    baseline, current = use_current_names(baseline), use_current_names(current)
    again = use_current_names(again) if again is not None else None
    device = _one_device(baseline, current, again or [])
    before, after = _rows(baseline), _rows(current)
    if not before or not after:
        raise UnsupportedError(
            f"nothing to compare: {len(before)} rows in the baseline, {len(after)} in the current "
            "records; both need records of kind bench or compile"
        )
    both = [key for key in before if key in after]
    times = {
        key: between_intervals(_interval(before[key]), _interval(after[key]))
        for key in both
        if _timed(before[key]) and _timed(after[key])
    }
    own = {key: time for key, time in times.items() if not is_peer(before[key])}
    peers = {key: time for key, time in times.items() if key not in own}
    same = _same(before, _rows(again)) if again is not None else peers
    noise = dict[str, Noise]()
    for launch in sorted({_launch(before[key]) for key in own}):
        found = [each for key, each in same.items() if _launch(before[key]) == launch]
        few = again is None and len(found) < _FEWEST_PEERS
        noise[launch] = noise_of([] if few else found, len(own))
    changes = [_time(before[key], after[key], each, noise) for key, each in own.items()]
    for key in both:
        changes += _exact(before[key], after[key])
    refused = {
        _key(record, _TIMING): record
        for record in after.values()
        if record.outcome is not Outcome.OK
    }
    for key, record in before.items():
        if key not in after:
            changes += _lost(record, refused.get(_key(record, _TIMING)))
    changes += [_gained(after[key]) for key in after if key not in before]
    return RegressReport(
        device=device,
        before=_revision(baseline),
        after=_revision(current),
        noise=noise,
        changes=tuple(changes),
        notes=_notes(again is not None, noise),
    )


def compare_rounds(
    rows: Sequence[Rounds], device: str, before: str, after: str, noise: Noise | None = None
) -> RegressReport:
    """Two revisions timed in turn; `noise` is that of a larger run that this one confirms."""
    same = [between_rounds(row.before, row.again) for row in rows]
    noise = noise or noise_of(same, len(rows))
    changes = list[Change]()
    for row in rows:
        difference = between_rounds(row.before, row.after)
        seconds = sorted(row.before)[len(row.before) // 2]
        changes.append(_judged(row.op, row.row, 1e6 * seconds, difference, noise.limit(difference)))
    return RegressReport(
        device=device,
        before=before,
        after=after,
        noise={"rounds": noise},
        changes=tuple(changes),
        notes=_blind({"rounds": noise}),
    )


def _judged(op: str, row: str, time_us: float, difference: Difference, limit: float) -> Change:
    verdict: Verdict = "same"
    if abs(difference.log_ratio) > limit:
        verdict = "regression" if difference.log_ratio > 0 else "improvement"
    return Change(
        op=op,
        row=row,
        metric="time_us",
        before=time_us,
        after=time_us * difference.ratio,
        limit=exp(limit),
        verdict=verdict,
    )


def _time(
    before: Record, after: Record, difference: Difference, noise: Mapping[str, Noise]
) -> Change:
    found = noise[_launch(before)]
    limit = found.limit(difference, LEAST if found.rows else _LEAST_WITHOUT_NOISE)
    return _judged(before.subject, _label(before), before.metrics["time_us"], difference, limit)


def _launch(record: Record) -> str:
    return str(record.settings.get("launch", "graph"))


def _exact(before: Record, after: Record) -> list[Change]:
    """Everything but the time: what repeats exactly, and whether it still works at all."""
    if is_peer(before):
        return []
    if before.outcome is Outcome.OK and after.outcome is not Outcome.OK:
        return [_change(before, "outcome", "regression", f"now {after.outcome}: {after.reason}")]
    changes = list[Change]()
    for metric, step in _STEPS.items():
        if metric in before.metrics and metric in after.metrics:
            changes.append(_stepped(before, after, metric, step))
    for name in _INSTRUCTIONS:
        if before.metrics.get(name, 0) > 0 and after.metrics.get(name) == 0:
            changes.append(_change(before, name, "regression", f"no {name} instruction is left"))
    return changes


def _stepped(before: Record, after: Record, metric: str, step: float) -> Change:
    old, new = before.metrics[metric], after.metrics[metric]
    # memory of a large call moves by a few allocations that the allocator rounds up
    step = max(step, 0.02 * old) if metric == "peak_memory_bytes" else step
    verdict: Verdict = "same"
    if abs(new - old) >= step:
        verdict = "regression" if new > old else "improvement"
    return Change(
        op=before.subject,
        row=_label(before),
        metric=metric,
        before=old,
        after=new,
        limit=step,
        verdict=verdict,
    )


def _lost(record: Record, refused: Record | None) -> list[Change]:
    """A variant that was refused as a whole stands for each of its timings."""
    if refused is not None:
        return _exact(record, refused)
    return [_change(record, "outcome", "missing", "not in the current records")]


def _gained(record: Record) -> Change:
    return _change(record, "outcome", "new", "not in the baseline")


def _change(record: Record, metric: str, verdict: Verdict, reason: str) -> Change:
    return Change(
        op=record.subject, row=_label(record), metric=metric, verdict=verdict, reason=reason
    )


def _same(before: Mapping[Key, Record], again: Mapping[Key, Record]) -> dict[Key, Difference]:
    return {
        key: between_intervals(_interval(record), _interval(again[key]))
        for key, record in before.items()
        if key in again and _timed(record) and _timed(again[key])
    }


def _rows(records: Sequence[Record]) -> dict[Key, Record]:
    return {_key(record): record for record in records if record.kind in ("bench", "compile")}


def _key(record: Record, without: tuple[str, ...] = ()) -> Key:
    """What makes a row the same row; what binds it is a result, which a refused one lacks."""
    settings = {
        name: str(value)
        for name, value in record.settings.items()
        if name not in ("revision", "binds", *without)
    }
    return (("kind", record.kind), ("op", record.subject), *sorted(settings.items()))


def _label(record: Record) -> str:
    names = ("implementation", "variant", "kernel", "target", "direction", "workload", "sizes")
    found = [record.settings.get(name) for name in (*names, "dtype", "options", "cache", "launch")]
    return " ".join(str(value) for value in found if value not in (None, ""))


def _timed(record: Record) -> bool:
    return "time_us" in record.metrics


def _interval(record: Record) -> Interval:
    middle = record.metrics["time_us"]
    return Interval(
        low=record.metrics.get("time_us_low", middle),
        middle=middle,
        high=record.metrics.get("time_us_high", middle),
    )


def is_peer(record: Record) -> bool:
    """Whether it is a bench row of another library, or of torch."""
    op = discover().get(record.subject)
    if op is None or record.kind != "bench":
        return False
    return record.settings.get("variant") not in {each.name for each in op.implementations}


def _one_device(*groups: list[Record]) -> str:
    """The device of every bench record. Compile records are of a target, not of a device."""
    found: dict[str, int] = {}
    for record in (record for group in groups for record in group if record.kind == "bench"):
        name = record.environment.accelerator or record.environment.processor
        found[name] = found.get(name, 0) + 1
    if len(found) > 1:
        counts = ", ".join(f"{count} rows of {name!r}" for name, count in sorted(found.items()))
        raise UnsupportedError(
            f"times of different devices cannot be compared: {counts}; give records of one device"
        )
    return next(iter(found), "no device (compiled only)")


def _revision(records: list[Record]) -> str:
    names = {str(record.settings["revision"]) for record in records if _has_revision(record)}
    return " and ".join(sorted(name[:12] for name in names)) or "unnamed"


def _has_revision(record: Record) -> bool:
    return record.settings.get("revision") is not None


def _notes(timed_again: bool, noise: Mapping[str, Noise]) -> tuple[str, ...]:
    notes = list[str]()
    if not timed_again and any(found.rows for found in noise.values()):
        notes.append("the noise is that of the other libraries' rows: no second run was given")
    notes += [
        f"too few {launch} rows were timed twice in one version: differences of times under "
        f"{_LEAST_WITHOUT_NOISE:.0%} are ignored; give a second run of the baseline as `again`"
        for launch, found in noise.items()
        if not found.rows
    ]
    return (*notes, *_blind(noise))


def _blind(noise: Mapping[str, Noise]) -> tuple[str, ...]:
    """Says where a pass means little: the noise would hide what a gate is there to find."""
    seen = {
        launch: exp(max(found.z * found.spread, found.largest)) for launch, found in noise.items()
    }
    return tuple(
        f"too noisy ({launch}): the same version differs so much from itself that less than "
        f"{ratio - 1:.0%} cannot be seen; measure again on a machine that does nothing else"
        for launch, ratio in seen.items()
        if ratio > _WANTED
    )
