"""Writes to linear_packed's lab notebook what the records say of each goal that it was built for,
and what one eager call costs the host.

python benchmarks/kernels/goals.py [--check]

A goal compares the times of equal calls, ours and a baseline's, or two calls of ours. A ratio is
baseline / ours where more is better (speed), ours / baseline where less is (time).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log
from pathlib import Path
from statistics import median

from tables import ROOT, committed

from tercet.harness.report.rows import latest, select_succeeded, setting
from tercet.ops.discover import find
from tercet.records import Record
from tercet.records.page import fill, write_pages

NOTEBOOK = ROOT / "docs" / "kernels" / "linear_packed.md"
OURS = tuple(each.name for each in find("linear_packed").implementations)
TERNARY, NONARY, INT4 = "ternary-channel", "nonary-channel", "int4-channel"
INT8, FP8 = "int8-channel", "fp8_e4m3-channel"
ALL = (2, 4, 8, 16, 32, 64, 256, 512, 1024, 4096, 8192)
# bf16 with the packed weight's own numbers, and with those of a weight before it is compressed
SAME, BEFORE = "bf16 of the same numbers", "bf16 of the uncompressed weight"
FOUR = ((4096, 14336), (14336, 4096), (8192, 28672), (28672, 8192))
FIVE = ((4096, 4096), *FOUR)
"""(K, N) of Llama-3 8B and 70B."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is compared.

    Attributes:
        words: the goal.
        schemes: of the weights; all if empty.
        x: what is multiplied: int8 "codes", "fp8 codes", 16-bit floats "none", or these quantized
            inside, "int8", "fp8_e4m3"; None for any.
        tokens: values of M; all if empty.
        baselines: of several the fastest counts.
        limit: that each ratio must keep: at most for times, at least for speeds.
        speed: the ratio is baseline / ours.
        mean: what the geometric mean of speeds must reach, too.
        shapes: (K, N); all that were recorded if empty.
    """

    words: str
    schemes: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    baselines: tuple[str, ...] = ()
    limit: float = 1.0
    x: str | None = "codes"
    speed: bool = True
    mean: float | None = None
    shapes: tuple[tuple[int, int], ...] = ()


def _beside_bf16(goal: Goal) -> tuple[Goal, Goal]:
    """The goal, which names no baseline, beside either bf16."""
    same = replace(goal, words=f"{goal.words} {SAME}", baselines=("eager",))
    return same, replace(goal, words=f"{goal.words} {BEFORE}", baselines=("uncompressed",))


GOALS = (
    Goal(
        words="ternary, int8 codes, M = 1: at most 1.08 of reading the same bytes, five shapes",
        schemes=(TERNARY,),
        tokens=(1,),
        baselines=("read only",),
        limit=1.08,
        speed=False,
        shapes=FIVE,
    ),
    Goal(
        words="nonary and int4, int8 codes, M = 1: at most 1.08 of reading",
        schemes=(NONARY, INT4),
        tokens=(1,),
        baselines=("read only",),
        limit=1.08,
        speed=False,
    ),
    Goal(
        words="ternary, 16-bit x, M = 1: at most 1.15 of reading",
        schemes=(TERNARY,),
        x="none",
        tokens=(1,),
        baselines=("read only",),
        limit=1.15,
        speed=False,
    ),
    Goal(
        words="ternary, x quantized inside, M = 1: at most 1.15 of reading",
        schemes=(TERNARY,),
        x="int8",
        tokens=(1,),
        baselines=("read only",),
        limit=1.15,
        speed=False,
    ),
    Goal(
        words="ternary, M = 2 to 64: ahead of Humming on every row, 1.6 times in the mean",
        schemes=(TERNARY,),
        tokens=(2, 4, 8, 16, 32, 64),
        baselines=("humming",),
        limit=1.0,
        mean=1.6,
    ),
    Goal(
        words="ternary, M = 256 to 8192: no slower than Humming",
        schemes=(TERNARY,),
        tokens=(256, 512, 1024, 4096, 8192),
        baselines=("humming",),
        limit=1.0,
    ),
    *_beside_bf16(
        Goal(
            words="ternary, int8 codes, M = 4096, four shapes: twice as fast as",
            schemes=(TERNARY,),
            tokens=(4096,),
            limit=2.0,
            shapes=FOUR,
        )
    ),
    *_beside_bf16(
        Goal(
            words="nonary and int4, int8 codes, M = 4096: twice as fast as",
            schemes=(NONARY, INT4),
            tokens=(4096,),
            limit=2.0,
        )
    ),
    *_beside_bf16(
        Goal(
            words="ternary in groups of 128, int8 codes, M = 4096: twice as fast as",
            schemes=("ternary-g128",),
            tokens=(4096,),
            limit=2.0,
        )
    ),
    *_beside_bf16(
        Goal(
            words="ternary and nonary, 16-bit x, M of 2 and more: no slower than",
            schemes=(TERNARY, NONARY),
            x="none",
            tokens=ALL,
        )
    ),
    Goal(
        words="fp8 weights: at least 0.95 of the faster of torch fp8 and Humming",
        schemes=(FP8,),
        x="fp8 codes",
        tokens=(1, *ALL),
        baselines=("fp8", "humming"),
        limit=0.95,
    ),
    Goal(
        words="int8 weights: at least 0.95 of the faster of torch fp8 and Humming",
        schemes=(INT8,),
        tokens=(1, *ALL),
        baselines=("fp8", "humming"),
        limit=0.95,
    ),
    *_beside_bf16(Goal(words="every call of these records: no slower than", x=None)),
)
FLAT = "ternary, int8 codes: M = 8 at most 1.15 of M = 1"
FLAT_LIMIT = 1.15
CHOSEN = "the implementation that selection takes: at most 1.05 of the fastest that was timed"
CHOSEN_LIMIT = 1.05

Call = tuple[str, str, int, tuple[int, int]]
Times = dict[Call, dict[str, float]]


def table(records: Iterable[Record]) -> str:
    """Each goal with the number of rows that keep it, the ratios' range and their mean."""
    times = _times(records)
    rows = [_row(goal, times) for goal in GOALS]
    rows.append(_words(FLAT, _flatness(times), FLAT_LIMIT, False, None))
    rows.append(_words(CHOSEN, _choices(times), CHOSEN_LIMIT, False, None))
    head = ["| goal | rows that keep it | least to most | geometric mean |", "|---|---:|---:|---:|"]
    return "\n".join([*head, *rows])


def _times(records: Iterable[Record]) -> Times:
    """Of each call, cold and in a graph; of those timed in both ways the ones that were alone."""
    found: dict[Call, dict[str, dict[str, float]]] = {}
    for record in latest(select_succeeded(records)):
        if (record.subject, setting(record, "cache"), setting(record, "launch")) != (
            "linear_packed",
            "cold",
            "graph",
        ):
            continue
        sizes = dict(part.split("=") for part in setting(record, "sizes").split())
        options = dict(part.split("=") for part in setting(record, "options").split())
        shape = (int(sizes["K"]), int(sizes["N"]))
        call = (options["scheme"], _x(options), int(sizes["M"]), shape)
        times = found.setdefault(call, {}).setdefault(setting(record, "pace"), {})
        times[setting(record, "variant")] = record.metrics["time_us"]
    return {call: paces.get("alone") or paces[""] for call, paces in found.items()}


def _x(options: dict[str, str]) -> str:
    activation = options.get("activation", "none")
    if options.get("codes") != "True":
        return activation
    return "codes" if activation == "int8" else "fp8 codes"


def _ours(times: dict[str, float]) -> float | None:
    """Of the implementation that selection takes: they are declared best first."""
    return next((times[name] for name in OURS if name in times), None)


def _row(goal: Goal, times: Times) -> str:
    ratios: list[float] = []
    for (scheme, x, tokens, shape), found in times.items():
        sides = ((scheme, goal.schemes), (tokens, goal.tokens), (shape, goal.shapes))
        wanted = goal.x in (None, x) and all(not some or one in some for one, some in sides)
        baselines = [found[name] for name in goal.baselines if name in found]
        ours = _ours(found)
        if wanted and ours and baselines:
            ratio = ours / min(baselines)
            ratios.append(1 / ratio if goal.speed else ratio)
    return _words(goal.words, ratios, goal.limit, goal.speed, goal.mean)


def _flatness(times: Times) -> list[float]:
    eight = {key: _ours(found) for key, found in times.items() if key[:3] == (TERNARY, "codes", 8)}
    one = {key: _ours(times.get((TERNARY, "codes", 1, key[3]), {})) for key in eight}
    pairs = ((eight[key], one[key]) for key in eight)
    return [most / least for most, least in pairs if most and least]


def _choices(times: Times) -> list[float]:
    """Of calls that several implementations were timed on, the chosen one's time over the least."""
    several = ([found[name] for name in OURS if name in found] for found in times.values())
    return [ours[0] / min(ours) for ours in several if len(ours) > 1]


def _words(
    words: str, ratios: Sequence[float], limit: float, speed: bool, mean: float | None
) -> str:
    if not ratios:
        return f"| {words} | not measured | | |"
    kept = sum(ratio >= limit if speed else ratio <= limit for ratio in ratios)
    middle = exp(fsum(map(log, ratios)) / len(ratios))
    aim = "" if mean is None or middle >= mean else f" (goal {mean:.2f})"
    ends = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"| {words} | {kept} of {len(ratios)} | {ends} | {middle:.2f}{aim} |"


def host_times(records: Iterable[Record]) -> str:
    """Microseconds of the host a call, the median of its runs, in the trees that were measured."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        times, tree = found.setdefault(record.subject, {}), setting(record, "tree")
        times.setdefault(tree, []).append(record.metrics["host_us"])
    trees = list(dict.fromkeys(tree for times in found.values() for tree in times))
    lines = [f"| eager call | {' | '.join(f'{tree}, us' for tree in trees)} |"]
    lines.append(f"|---|{'---:|' * len(trees)}")
    for subject, times in found.items():
        cells = (f"{median(times[tree]):.1f}" if tree in times else "-" for tree in trees)
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """The notebook with its generated parts made anew."""
    records = committed()
    text = NOTEBOOK.read_text(encoding="utf-8")
    text = fill(text, "goals", table([record for record in records if record.kind == "bench"]))
    host = [record for record in records if record.kind == "host time"]
    return {NOTEBOOK: fill(text, "host time", host_times(host))}


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/kernels/goals.py", pages)
