"""Writes what the committed records of the kernel benchmarks say.

python benchmarks/kernels/tables.py [--check]

Every row goes to one page per device beside this file, DEVICE.md; each op's README gets at most
ROWS of them, chosen by rule. Records are the *.jsonl beside this file; of equal rows the last one
counts.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

from tercet.harness.former_names import use_current_names
from tercet.harness.report.rows import device_of, latest, select_succeeded, setting
from tercet.kernel.contract import Op
from tercet.ops.discover import discover
from tercet.records import Record, load
from tercet.records.page import NOTHING, fill, has, write_pages

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent
FIRST_PEERS = ("eager", "compile")
# what comes first is shown: caches as a model's own traffic leaves them, no launch overhead
CACHES, LAUNCHES = ("cold", "warm", ""), ("graph", "eager", "")
# of a README's table; of an op with more rows, the two most measured kinds of call share them
ROWS, KINDS = 8, 2


def table(op: Op, records: Sequence[Record]) -> str:
    """The op's part of its README: a table for each device, or that there is none.

    An op with more than ROWS rows shows its two kinds of call (options, dtype and direction) that
    were measured most, each at the widest shape of a row count, for four counts from least to most;
    what is left of ROWS goes to the next rows in the order of the records.
    """
    own = _own(op, records)
    parts = [
        _of_device(op, device, _representative(op, [r for r in own if device_of(r) == device]))
        + f"\n\nAll rows: [{_page(device).name}]({_upwards(op)}{_page(device).name}#{op.name})."
        for device in sorted({device_of(record) for record in own})
    ]
    return "\n\n".join(parts) or NOTHING


def _own(op: Op, records: Sequence[Record]) -> list[Record]:
    return [record for record in latest(select_succeeded(records)) if record.subject == op.name]


def _page(device: str) -> Path:
    return FOLDER / (re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".md")


def _upwards(op: Op) -> str:
    depth = len(_folder(op).relative_to(ROOT).parts)
    return f"{'../' * depth}{FOLDER.relative_to(ROOT).as_posix()}/"


def _representative(op: Op, records: Sequence[Record]) -> list[Record]:
    """All records of an op with few rows; else those of the rows that `table` shows."""
    rows = dict.fromkeys(_row(record) for record in records if _is_ours(op, record))
    if len(rows) <= ROWS:
        return list(records)
    kinds = Counter(_kind(row) for row in rows)
    shown = [
        row
        for kind, _ in kinds.most_common(KINDS)
        for row in _spread(_widest([row for row in rows if _kind(row) == kind]))
    ]
    shown += [row for row in rows if row not in shown][: ROWS - len(shown)]
    order = {row: place for place, row in enumerate(shown)}
    kept = [record for record in records if _row(record) in order]
    return sorted(kept, key=lambda record: order[_row(record)])


def _is_ours(op: Op, record: Record) -> bool:
    return setting(record, "variant") in {each.name for each in op.implementations}


def _kind(row: tuple[str, ...]) -> tuple[str, ...]:
    _, _, dtype, options, direction, _ = row
    return dtype, options, direction


def _widest(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The widest call at each size of the first axis (rows of x), the fewest first."""
    found: dict[int, tuple[int, tuple[str, ...]]] = {}
    for row in rows:
        count, *others = (int(size.partition("=")[2]) for size in row[1].split())
        # of equal width the last: the one that was timed alone where there are both
        if prod(others) >= found.get(count, (0, row))[0]:
            found[count] = prod(others), row
    return [found[count][1] for count in sorted(found)]


def _spread(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """At most ROWS / KINDS of the rows, at even distances, the first and the last among them."""
    most = min(len(rows), ROWS // KINDS)
    return [rows[place * (len(rows) - 1) // max(1, most - 1)] for place in range(most)]


def _of_device(op: Op, device: str, records: Sequence[Record]) -> str:
    rows: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in sorted(records, key=_preference, reverse=True):
        variants = rows.setdefault(_row(record), {})
        variants[setting(record, "variant")] = record
    order = list(dict.fromkeys(_row(record) for record in records))
    found = {variant for variants in rows.values() for variant in variants}
    implementations = [each.name for each in op.implementations if each.name in found]
    if not implementations:
        return f"{device}: no implementation of Tercet was measured."
    # an implementation that is no more is no peer
    others = _peers(found & {"compile", *(each.name for each in op.baselines)})
    several = len(implementations) > 1
    name = "implementation | us" if several else f"{implementations[0]}, us"
    lines = [
        f"| shape | sizes | direction | {name} | speed | of the limit |"
        + "".join(f" {name}, us |" for name in others),
        f"|---|---|---|{'---|' if several else ''}---:|---:|---:|" + "---:|" * len(others),
    ]
    measured = list[Record]()
    for row in order:
        # the one that selection takes: implementations are declared best first
        mine = next((name for name in implementations if name in rows[row]), None)
        if mine is not None and rows[row][mine] not in measured:
            measured.append(rows[row][mine])
            lines.append(_line(rows[row], mine, others, several))
    return f"{_caption(device, measured)}\n\n" + "\n".join(lines)


def _row(record: Record) -> tuple[str, ...]:
    names = ("workload", "sizes", "dtype", "options", "direction", "pace")
    return tuple(setting(record, name) for name in names)


def _preference(record: Record) -> tuple[int, int]:
    return CACHES.index(setting(record, "cache")), LAUNCHES.index(setting(record, "launch"))


def _peers(names: set[str]) -> list[str]:
    return [*(name for name in FIRST_PEERS if name in names), *sorted(names - set(FIRST_PEERS))]


def _line(variants: dict[str, Record], mine: str, others: Sequence[str], named: bool) -> str:
    record = variants[mine]
    metrics, time = record.metrics, record.metrics["time_us"]
    if setting(record, "binds") == "compute":
        speed = f"{metrics['flops_per_second'] / 1e12:.0f} TFLOP/s"
    else:
        speed = f"{metrics['bytes_per_second'] / 1e12:.2f} TB/s"
    cells = [
        setting(record, "workload"),
        " ".join(filter(None, (setting(record, "sizes"), setting(record, "options")))),
        setting(record, "direction"),
        *([mine] if named else []),
        f"{time:.4g}",
        speed,
        f"{metrics['roofline_fraction']:.0%}",
    ]
    for name in others:
        other = variants.get(name)
        cells.append(_beside(other.metrics["time_us"], time) if other is not None else "-")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _beside(time: float, mine: float) -> str:
    return f"{time:.4g} ({time / mine:.2f}x)"


def _caption(device: str, records: Sequence[Record]) -> str:
    days = sorted({record.time[:10] for record in records})
    revisions = sorted({setting(record, "revision")[:12] for record in records} - {""})
    caches = sorted({setting(record, "cache") for record in records} - {""})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    versions = f", revision {', '.join(revisions)}" if revisions else ""
    cache = f"; {' and '.join(caches)} cache" if caches else ""
    alone = sum(setting(record, "pace") == "alone" for record in records)
    pace = f" {alone} rows timed alone, each call at a clock of its own." if alone else ""
    return (
        f"{device}, {when}{versions}{cache}.{pace} The limit is the copy bandwidth, or the matrix "
        "rate where operations bind (TFLOP/s), measured on the same device; in brackets, times "
        "ours."
    )


def readmes(records: Sequence[Record]) -> dict[Path, str]:
    """Each op's README as it should be."""
    found: dict[Path, str] = {}
    for op in discover().values():
        path = _folder(op) / "README.md"
        if path.exists() and has(text := path.read_text(encoding="utf-8"), "table"):
            found[path] = fill(text, "table", table(op, records))
    return found


def _folder(op: Op) -> Path:
    return ROOT / "src" / "tercet" / "ops" / op.name


def devices(records: Sequence[Record]) -> dict[Path, str]:
    """Each device's page, with every row that was measured on it."""
    ops = [(op, own) for op in discover().values() if (own := _own(op, records))]
    return {
        _page(device): _device_page(device, ops)
        for device in sorted({device_of(record) for _, own in ops for record in own})
    }


def _device_page(device: str, ops: Sequence[tuple[Op, Sequence[Record]]]) -> str:
    parts = [
        f"# Kernels on {device}\n\n"
        "Every measured row of every op, written by `python benchmarks/kernels/tables.py` from the "
        "committed records. Each op's README explains its columns and shows a few of these rows."
    ]
    for op, own in ops:
        if here := [record for record in own if device_of(record) == device]:
            parts.append(f"## {op.name}\n\n{_of_device(op, device, here)}")
    return "\n\n".join(parts) + "\n"


def committed() -> list[Record]:
    """Every record beside this file, in the order in which files list them."""
    return use_current_names(
        record for path in sorted(FOLDER.glob("*.jsonl")) for record in load(path)
    )


def pages() -> dict[Path, str]:
    """Each op's README and each device's page as the committed records make them."""
    records = [record for record in committed() if record.kind == "bench"]
    return readmes(records) | devices(records)


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/kernels/tables.py", pages)
