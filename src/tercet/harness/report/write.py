"""Write the report of a set of records: rooflines, history and tables on one page."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tercet.harness.former_names import use_current_names
from tercet.harness.report.history import history
from tercet.harness.report.page import page, section, write_page
from tercet.harness.report.roofline import roofline
from tercet.harness.report.rows import device_of, latest, select_succeeded, setting
from tercet.harness.report.table import Cell, Column, number_cell, table
from tercet.records import Outcome, Record

# what was measured first: on a phone only the first columns are in sight
_BENCH = (
    Column(title="op", choice=True),
    Column(title="variant", choice=True),
    Column(title="time, us", number=True),
    Column(title="+- %", number=True, narrow=False),
    Column(title="% of roofline", number=True),
    Column(title="direction", choice=True),
    Column(title="TB/s", number=True),
    Column(title="TFLOP/s", number=True, narrow=False),
    Column(title="shape"),
    Column(title="sizes", narrow=False),
    Column(title="dtype", narrow=False),
    Column(title="options", narrow=False),
    Column(title="cache", narrow=False, choice=True),
    Column(title="launch", narrow=False, choice=True),
    Column(title="bound by", narrow=False),
    Column(title="peak, MiB", number=True, narrow=False),
    Column(title="clock, MHz", number=True, narrow=False),
)
_BROKEN = (Column(title="op"), Column(title="row"), Column(title="outcome"), Column(title="reason"))
_COMPILE = (
    Column(title="op", choice=True),
    Column(title="kernel"),
    Column(title="target", choice=True),
    Column(title="variant", narrow=False),
    Column(title="registers", number=True),
    Column(title="spills", number=True),
    Column(title="shared, bytes", number=True, narrow=False),
    Column(title="matrix instructions", narrow=False),
)


class ReportSummary(BaseModel):
    """What a report holds: where it is, and how many rows of each kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    devices: tuple[str, ...]
    timed: int
    refused: int
    compiled: int

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.timed} timed and {self.refused} refused rows on "
            f"{len(self.devices)} devices, {self.compiled} compiled kernels"
        )


def write_report(records: Sequence[Record], path: Path) -> ReportSummary:
    """Writes one self-contained HTML page of bench, ceiling and compile records."""
    records = use_current_names(records)
    bench = [record for record in records if record.kind == "bench"]
    compiled = latest(record for record in records if record.kind == "compile")
    devices = sorted({device_of(record) for record in bench})
    sections = list[str]()
    for device in devices:
        own = [record for record in bench if device_of(record) == device]
        sections += _device(device, own, _ceiling(records, device))
    broken = [record for record in latest(bench) if record.outcome is not Outcome.OK]
    if broken:
        rows = [_broken(record) for record in broken]
        sections.append(section("Refused", table(_BROKEN, rows), "These have no time that counts."))
    if compiled:
        content = table(_COMPILE, [_compiled(record) for record in compiled])
        sections.append(section("Compiled kernels", content))
    timed = latest(select_succeeded(bench))
    last = max((record.time for record in records), default="")[:10]
    introduction = f"{len(timed)} timed rows; last measured {last}." if timed else "Nothing timed."
    write_page(path, page("Tercet kernels", introduction, sections))
    return ReportSummary(
        path=str(path),
        devices=tuple(devices),
        timed=len(timed),
        refused=len(broken),
        compiled=len(compiled),
    )


def _device(device: str, records: Sequence[Record], ceiling: Record | None) -> list[str]:
    good = select_succeeded(records)
    rows = latest(good)
    sections = list[str]()
    steady = [row for row in rows if _is_steady(row)] or rows
    if plot := roofline(steady, ceiling):
        note = "A mark is a row, timed in a graph with a cold cache; lines are measured ceilings."
        sections.append(section(f"Roofline: {device}", plot, note))
    for op in sorted({row.subject for row in rows}):
        if plot := history([row for row in good if row.subject == op]):
            sections.append(section(f"{op} over revisions, % of the roofline", plot))
    if rows:
        sections.append(section(f"Times: {device}", table(_BENCH, [_timed(row) for row in rows])))
    return sections


def _is_steady(row: Record) -> bool:
    """Timed as the roofline assumes: no launch overhead, nothing left in the cache."""
    return setting(row, "launch") in ("graph", "") and setting(row, "cache") in ("cold", "")


def _ceiling(records: Sequence[Record], device: str) -> Record | None:
    """The last ceilings of the device."""
    found = [
        record
        for record in records
        if record.kind == "ceiling" and record.metrics and device_of(record) == device
    ]
    return found[-1] if found else None


def _timed(record: Record) -> list[Cell]:
    call = ("workload", "sizes", "dtype", "options", "cache", "launch", "binds")
    metrics = record.metrics
    time = metrics["time_us"]
    low, high = metrics.get("time_us_low", time), metrics.get("time_us_high", time)
    fraction = metrics.get("roofline_fraction")
    throttled = "bad" if metrics.get("throttled") else ""
    return [
        Cell(text=record.subject),
        Cell(text=setting(record, "variant")),
        Cell(text=f"{time:.4g}", value=time),
        number_cell(50 * (high - low) / time, "{:.1f}"),
        Cell(text=f"{fraction:.0%}", value=fraction, bar=fraction)
        if fraction is not None
        else Cell(),
        Cell(text=setting(record, "direction")),
        number_cell(metrics.get("bytes_per_second"), "{:.2f}", 1e12),
        number_cell(metrics.get("flops_per_second"), "{:.1f}", 1e12),
        *(Cell(text=setting(record, name)) for name in call),
        number_cell(metrics.get("peak_memory_bytes"), "{:,.0f}", 2**20),
        number_cell(metrics.get("clock_mhz"), "{:.0f}", style=throttled),
    ]


def _broken(record: Record) -> list[Cell]:
    names = ("variant", "direction", "workload", "sizes")
    row = " ".join(filter(None, (setting(record, name) for name in names)))
    return [
        Cell(text=record.subject),
        Cell(text=row),
        Cell(text=str(record.outcome), style="bad"),
        Cell(text=record.reason or "", style="reason"),
    ]


def _compiled(record: Record) -> list[Cell]:
    metrics = record.metrics
    found = {name: metrics.get(name, 0) for name in ("wgmma", "tcgen05", "mfma", "mma")}
    spills = metrics.get("spills")
    return [
        Cell(text=record.subject),
        Cell(text=f"{setting(record, 'implementation')} {setting(record, 'kernel')}"),
        Cell(text=setting(record, "target")),
        Cell(text=setting(record, "variant")),
        number_cell(metrics.get("registers"), "{:.0f}"),
        number_cell(spills, "{:.0f}", style="bad" if spills else ""),
        number_cell(metrics.get("shared_bytes"), "{:,.0f}"),
        Cell(text=", ".join(f"{name} {count:.0f}" for name, count in found.items() if count)),
    ]
