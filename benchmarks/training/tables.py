"""Writes the table of README.md beside this file from the committed records.

python benchmarks/training/tables.py [--check]

It stands between `<!-- table -->` and `<!-- end -->`; of each device, size and mode the newest
record counts. --check fails where it is out of date.
"""

import argparse
import sys
from pathlib import Path

from tercet.records import Outcome, Record, load

PAGE = Path(__file__).parent / "README.md"
START, END = "<!-- table -->", "<!-- end -->"


def newest() -> dict[tuple[str, str], dict[str, Record]]:
    """(device, sizes) -> mode -> its newest record, fastest first."""
    records = [r for path in sorted(PAGE.parent.glob("*.jsonl")) for r in load(path)]
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: record.time):
        key = (str(record.environment.accelerator), str(record.settings["sizes"]))
        found.setdefault(key, {})[str(record.settings["mode"])] = record
    return {
        key: dict(sorted(modes.items(), key=lambda item: item[1].metrics.get("time_us", 1e9)))
        for key, modes in found.items()
    }


def table() -> str:
    """A table for each device and size."""
    parts = list[str]()
    for (device, sizes), modes in newest().items():
        days = sorted({record.time[:10] for record in modes.values()})
        lines = [
            f"{device}, {sizes}, {' to '.join(dict.fromkeys((days[0], days[-1])))}",
            "",
            "| mode | ms a step | times bf16 | off by | clock, MHz |",
            "|---|---:|---:|---:|---:|",
        ]
        for mode, record in modes.items():
            metrics = record.metrics
            if record.outcome is Outcome.OK:
                clock = metrics.get("clock_mhz")
                cells = [
                    f"{metrics['time_us'] / 1e3:.3f}",
                    f"{metrics['ratio_to_bf16']:.3f}" if "ratio_to_bf16" in metrics else "-",
                    f"{metrics['relative_error']:.2%}",
                    f"{clock:.0f}" if clock is not None else "-",
                ]
            else:
                cells = [f"{record.outcome.lower()}: {record.reason}", "-", "-", "-"]
            lines.append(f"| {' | '.join((mode, *cells))} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "Not measured yet."


def filled(text: str) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    if filled(text) == text:
        return
    if check:
        sys.exit(f"{PAGE.name} is out of date: run python benchmarks/training/tables.py")
    PAGE.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
