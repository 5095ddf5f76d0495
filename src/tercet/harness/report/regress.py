"""A regression report as Markdown and as an HTML page."""

from math import exp
from pathlib import Path

from tercet.harness.regress.report import Change, RegressReport
from tercet.harness.report.page import page, section, write_page
from tercet.harness.report.table import Cell, Column, table

_COLUMNS = (
    Column(title="verdict", choice=True),
    Column(title="op", choice=True),
    Column(title="row"),
    Column(title="metric", choice=True),
    Column(title="before", number=True),
    Column(title="after", number=True),
    Column(title="change, %", number=True),
    Column(title="why", narrow=False),
)
_HEAD = "| | op | row | metric | before | after | change |"
_STYLE = {"regression": "bad", "improvement": "good"}


def regress_markdown(report: RegressReport) -> str:
    """The report for a pull request: what changed as a table, the rest as counts."""
    lines = [f"## {'No regression' if report.passed else 'Regression'}", "", f"{report}", ""]
    changed = report.of("regression", "improvement")
    if changed:
        lines += [_HEAD, "|---|---|---|---|--:|--:|--:|"]
        lines += [_line(change) for change in changed] + [""]
    lines += [f"- {line}" for line in (*_noise(report), *report.notes)]
    return "\n".join(lines) + "\n"


def write_regress(report: RegressReport, path: Path) -> None:
    """Writes the report as one self-contained HTML page."""
    order = ("regression", "improvement", "missing", "new", "same")
    changes = sorted(report.changes, key=lambda change: order.index(change.verdict))
    content = table(_COLUMNS, [_cells(change) for change in changes])
    title = "No regression" if report.passed else "Regression"
    notes = " ".join((*(f"{line}." for line in _noise(report)), *report.notes))
    write_page(path, page(title, str(report), [section("Rows", content, notes)]))


def _line(change: Change) -> str:
    values = (_value(change.before), _value(change.after), _percent(change) or change.reason)
    cells = (change.verdict, change.op, change.row.replace("|", "\\|"), change.metric, *values)
    return f"| {' | '.join(cells)} |"


def _cells(change: Change) -> list[Cell]:
    ratio = change.ratio
    return [
        Cell(text=change.verdict, style=_STYLE.get(change.verdict, "")),
        Cell(text=change.op),
        Cell(text=change.row),
        Cell(text=change.metric),
        Cell(text=_value(change.before), value=change.before),
        Cell(text=_value(change.after), value=change.after),
        Cell(text=_percent(change), value=100 * (ratio - 1)) if ratio is not None else Cell(),
        Cell(text=change.reason, style="reason"),
    ]


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:,.5g}" if value < 1e5 else f"{value:,.0f}"


def _percent(change: Change) -> str:
    return f"{100 * (change.ratio - 1):+.1f} %" if change.ratio is not None else ""


def _noise(report: RegressReport) -> list[str]:
    return [
        f"{launch}: {noise.rows} rows timed twice in one version: spread "
        f"{exp(noise.spread) - 1:.2%}, largest {exp(noise.largest) - 1:.2%}; "
        f"{noise.comparisons} rows judged, beyond {noise.z:.1f} deviations"
        for launch, noise in report.noise.items()
    ]
