"""Writes the tables of README.md beside this file from the committed records.

python benchmarks/training/tables.py [--check]

Of each device, size and mode the newest record counts.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from tercet.records import Outcome, Record, load
from tercet.records.page import NOTHING, filled, write_pages

PAGE = Path(__file__).parent / "README.md"
PARTS = ("codes", "forward", "backward", "optimizer")


def newest(kind: str, sizes: Callable[[Record], str], time: str) -> dict[str, dict[str, Record]]:
    """Of records of that kind: device, sizes and days -> mode -> its newest record, fastest first.

    time: the metric that tells which is fastest.
    """
    records = [r for path in sorted(PAGE.parent.glob("*.jsonl")) for r in load(path)]
    found: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: record.time):
        if record.kind == kind:
            title = f"{record.environment.accelerator}, {sizes(record)}"
            found.setdefault(title, {})[str(record.settings["mode"])] = record
    return {
        f"{title}, {_days(modes.values())}": dict(
            sorted(modes.items(), key=lambda item: item[1].metrics.get(time, 1e9))
        )
        for title, modes in found.items()
    }


def _days(records: Iterable[Record]) -> str:
    days = sorted({record.time[:10] for record in records})
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def table() -> str:
    """A layer's step: a table for each device and size."""
    parts = list[str]()
    for title, modes in newest(
        "training step", lambda record: str(record.settings["sizes"]), "time_us"
    ).items():
        lines = [
            title,
            "",
            "| mode | ms a step | times bf16 | off by | clock, MHz |",
            "|---|---:|---:|---:|---:|",
        ]
        for mode, record in modes.items():
            metrics = record.metrics
            if record.outcome is Outcome.OK:
                cells = [
                    f"{metrics['time_us'] / 1e3:.3f}",
                    f"{metrics['ratio_to_bf16']:.3f}" if "ratio_to_bf16" in metrics else "-",
                    f"{metrics['relative_error']:.2%}",
                    _clock(record),
                ]
            else:
                cells = [f"{record.outcome.lower()}: {record.reason}", "-", "-", "-"]
            lines.append(f"| {' | '.join((mode, *cells))} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or NOTHING


def whole() -> str:
    """A model's step: a table for each device, number of layers and of tokens."""
    parts = list[str]()
    for title, modes in newest("whole training step", _model, "step_ms").items():
        base = modes["bf16"].metrics.get("tokens_per_s") if "bf16" in modes else None
        lines = [
            title,
            "",
            f"| mode | tokens/s | times bf16 | ms a step | {', '.join(PARTS)}, ms | peak, GB "
            "| clock, MHz |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for mode, record in modes.items():
            metrics = record.metrics
            if record.outcome is Outcome.OK:
                speed = metrics["tokens_per_s"]
                own = [f"{metrics.get(f'{part}_ms', 0.0):.1f}" for part in PARTS]
                cells = [
                    f"{speed:.0f}",
                    f"{speed / base:.2f}" if base else "-",
                    f"{metrics['step_ms']:.1f}",
                    " + ".join(own),
                    f"{metrics['peak_bytes'] / 1e9:.2f}",
                    _clock(record),
                ]
            else:
                cells = [f"{record.outcome.lower()}: {record.reason}", *"-----"]
            lines.append(f"| {' | '.join((mode, *cells))} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or NOTHING


def _model(record: Record) -> str:
    settings = record.settings
    return f"{settings['layers']} of {record.subject}, {settings['tokens']} tokens a step"


def _clock(record: Record) -> str:
    clock = record.metrics.get("clock_mhz")
    return f"{clock:.0f}" if clock is not None else "-"


def pages() -> dict[Path, str]:
    """The page with its tables made anew."""
    text = filled(PAGE.read_text(encoding="utf-8"), "table", table())
    return {PAGE: filled(text, "whole step", whole())}


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/training/tables.py", pages)
