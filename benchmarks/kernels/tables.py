"""Writes the measured table of each op's README from the committed records of its benchmark.

python benchmarks/kernels/tables.py [--check]

It is made of the *.jsonl beside this file; of equal rows the last one counts.
"""

from collections.abc import Sequence
from pathlib import Path

from tercet.harness.report.rows import device_of, latest, setting, succeeded
from tercet.kernel.contract import Op
from tercet.kernel.select import discover
from tercet.records import Record, load
from tercet.records.page import NOTHING, filled, has, write_pages

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent
FIRST_PEERS = ("eager", "compile")
# what comes first is shown: caches as a model's own traffic leaves them, no launch overhead
CACHES, LAUNCHES = ("cold", "warm", ""), ("graph", "eager", "")


def table(op: Op, records: Sequence[Record]) -> str:
    """The op's part of its README: a table for each device, or that there is none."""
    own = [record for record in latest(succeeded(records)) if record.subject == op.name]
    devices = sorted({device_of(record) for record in own})
    parts = [
        _of_device(op, device, [r for r in own if device_of(r) == device]) for device in devices
    ]
    return "\n\n".join(parts) or NOTHING


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
        path = ROOT / "src" / "tercet" / "ops" / op.name / "README.md"
        if path.exists() and has(text := path.read_text(encoding="utf-8"), "table"):
            found[path] = filled(text, "table", table(op, records))
    return found


def committed() -> list[Record]:
    """Every record beside this file, in the order in which files list them."""
    return [record for path in sorted(FOLDER.glob("*.jsonl")) for record in load(path)]


def pages() -> dict[Path, str]:
    """Each op's README as the committed records make it."""
    return readmes([record for record in committed() if record.kind == "bench"])


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/kernels/tables.py", pages)
