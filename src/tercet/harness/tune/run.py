"""Tune: finds the fastest right configuration of a kernel for each shape, and writes the table.

Every configuration is checked against the reference before it is timed. Configurations race in
rounds, interleaved, on cold inputs; the winner meets the kernel's default at length, and enters
`tuned/DEVICE.json` only where the two confidence intervals do not meet.
"""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tercet.checkpoints.atomic import write_atomic
from tercet.errors import UnsupportedError
from tercet.harness.seed import draw_seed
from tercet.harness.timing.clock import timing_on
from tercet.harness.timing.statistics import Interval
from tercet.harness.tune.configuration_outcome import ConfigurationOutcome
from tercet.harness.tune.course import Course
from tercet.harness.tune.search import search
from tercet.harness.workloads.arguments import device_or_best
from tercet.kernel import tuned
from tercet.kernel.contract import Implementation, Op, Workload
from tercet.kernel.tuned import Direction, TunedEntry

SECONDS_PER_SHAPE = 60.0
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


class TunedShape(BaseModel):
    """The result for one workload in one direction.

    Attributes:
        direction, workload, sizes, dtype: of which call.
        asked: the sizes at which the kernel asked for its configuration: what its entries are for.
        configuration: the fastest right one; None where none was right.
        time_us, default_us: its median and the default's, timed in turn at the end; None where
            that could not be done.
        better: whether it is faster than the default by more than noise.
        trials: every configuration that was tried.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    direction: Direction
    workload: str
    sizes: dict[str, int]
    dtype: str
    asked: tuple[dict[str, int], ...]
    configuration: dict[str, int] | None
    time_us: float | None
    default_us: float | None
    better: bool
    trials: tuple[ConfigurationOutcome, ...]


class TuneReport(BaseModel):
    """The results of tuning an op.

    Attributes:
        op, implementation, device: what was tuned, for which device.
        seed: of inputs and order.
        shapes: one per workload and direction.
        path: the table that was written; None where nothing was.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str
    implementation: str
    device: str
    seed: int
    shapes: tuple[TunedShape, ...]
    path: str | None


def tune(
    op: Op,
    implementation: str,
    workloads: Iterable[Workload],
    *,
    device: str | None = None,
    directions: Sequence[Direction] = DIRECTIONS,
    seconds: float = SECONDS_PER_SHAPE,
    seed: int | None = None,
    write: bool = True,
) -> TuneReport:
    """Tunes one implementation of an op.

    Args:
        op, implementation: what; it declares a `space` (forward) or `gradient_space` (backward).
        workloads: for which calls.
        device: "cuda" or "cpu"; None for a GPU where there is one.
        directions: forward, backward or both.
        seconds: to spend on each workload and direction, about; a small space may end sooner.
        seed: of inputs and order; None for a fresh one.
        write: whether to write the table.

    Raises:
        UnsupportedError: where the implementation declares no space, or cannot run here.
    """
    where = device_or_best(device)
    found = op.implementation(implementation)
    chosen = draw_seed() if seed is None else seed
    kernels = found.load()
    shapes = list[TunedShape]()
    for workload in workloads:
        _require(op, found, workload, where, directions)
        for direction in directions:
            space = found.space if direction == "forward" else found.gradient_space
            if not space:
                continue
            with timing_on(where) as (timer, stream):
                course = Course(
                    op.held_to(found),
                    implementation,
                    kernels,
                    workload,
                    direction,
                    device=where,
                    seed=chosen,
                    timer=timer,
                    stream=stream,
                    seconds=seconds,
                )
                best = search(space, course.race, random.Random(chosen), course.spent)
                shapes.append(_result(course, best, workload, direction))
                # its copies, before the next course draws its own
                del course
    name = "cpu" if where == "cpu" else tuned.device_name()
    path = tuned.table_path(op.name, name)
    wrote = write and write_table(path, implementation, shapes)
    return TuneReport(
        op=op.name,
        implementation=implementation,
        device=name,
        seed=chosen,
        shapes=tuple(shapes),
        path=str(path) if wrote else None,
    )


def write_table(path: Path, implementation: str, shapes: Sequence[TunedShape]) -> bool:
    """Puts what was found into the table at `path`, whole or not at all; whether it changed.

    An entry replaces the one of the same implementation, direction and sizes; its sizes are those
    at which the kernel asked. A shape whose default was not beaten gets an entry without options
    where another shape has one: without it the nearest shape's configuration would run, which was
    not measured here.
    """
    old: list[TunedEntry] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    entries = {_key(entry): entry for entry in old}
    found = [(shape, entry) for shape in shapes for entry in _entries(implementation, shape)]
    for shape, entry in found:
        if shape.better:
            entries[_key(entry)] = entry
        elif shape.time_us is not None:
            entries.pop(_key(entry), None)
    for shape, entry in found:
        beside = any(
            key[:2] == _key(entry)[:2] and e["configuration"] for key, e in entries.items()
        )
        if shape.time_us is not None and not shape.better and beside:
            entries[_key(entry)] = {**entry, "configuration": {}}
    ordered = [entries[key] for key in sorted(entries)]
    if ordered == old:
        return False
    lines = ",\n".join(" " + json.dumps(entry) for entry in ordered)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, f"[\n{lines}\n]\n".encode() if lines else b"[]\n")
    tuned.forget()
    return True


def _require(
    op: Op,
    implementation: Implementation,
    workload: Workload,
    device: str,
    directions: Sequence[Direction],
) -> None:
    missing = implementation.requirement.unmet(op.context(workload, device))
    if missing is not None:
        raise UnsupportedError(f"{op.name} {implementation.name} cannot run here: {missing}")
    spaces = {"forward": implementation.space, "backward": implementation.gradient_space}
    if not any(spaces[direction] for direction in directions):
        raise UnsupportedError(
            f"{op.name} {implementation.name} declares nothing to tune for "
            f"{' and '.join(directions)}: give its Implementation a `space` or `gradient_space`"
        )


def _result(
    course: Course, best: dict[str, int] | None, workload: Workload, direction: Direction
) -> TunedShape:
    duel = course.duel(best) if best is not None else None
    return TunedShape(
        direction=direction,
        workload=workload.name,
        sizes=dict(workload.sizes),
        dtype=str(workload.dtype)[6:],
        asked=tuple(dict(sizes) for sizes in course.asked),
        configuration=best,
        time_us=duel[1].median if duel is not None else None,
        default_us=duel[0].median if duel is not None else None,
        better=duel is not None and _beats(duel[1], duel[0]),
        trials=tuple(course.trials.values()),
    )


def _beats(challenger: Interval, default: Interval) -> bool:
    return challenger.high < default.low


def _entries(implementation: str, shape: TunedShape) -> list[TunedEntry]:
    return [
        TunedEntry(
            implementation=implementation,
            direction=shape.direction,
            sizes=sizes,
            configuration=shape.configuration or {},
        )
        for sizes in shape.asked
    ]


def _key(entry: TunedEntry) -> tuple[str, str, tuple[tuple[str, int], ...]]:
    return entry["implementation"], entry["direction"], tuple(sorted(entry["sizes"].items()))
