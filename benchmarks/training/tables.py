"""Writes the tables of README.md beside this file from the committed records.

python benchmarks/training/tables.py [--check]

Of each device, size and mode the newest record counts.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from tercet.records import Outcome, Record, load
from tercet.records.page import NOTHING, fill, markdown, write_pages

PAGE = Path(__file__).parent / "README.md"
PARTS = ("codes", "forward", "backward", "optimizer")
# what the other modes of loss curves are compared with
VALUES = "values"
LOSSES = {"last_loss": "last 30 steps", "held_out_loss": "held out"}


def of_kind(kind: str) -> list[Record]:
    """Records of that kind, the newest last."""
    records = [r for path in sorted(PAGE.parent.glob("*.jsonl")) for r in load(path)]
    return sorted((r for r in records if r.kind == kind), key=lambda record: record.time)


def newest(kind: str, sizes: Callable[[Record], str], time: str) -> dict[str, dict[str, Record]]:
    """Of records of that kind: device, sizes and days -> mode -> its newest record, fastest first.

    time: the metric that tells which is fastest.
    """
    found: dict[str, dict[str, Record]] = {}
    for record in of_kind(kind):
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
    again = ", layers computed again" if settings.get("checkpoint") else ""
    kept = ", codes of all inputs kept" if settings.get("keep_inputs") else ""
    eager = "" if settings.get("compiled", True) else ", layers not compiled"
    tokens = f"{settings['tokens']} tokens a step"
    return f"{settings['layers']} of {record.subject}, {tokens}{again}{kept}{eager}"


def curves() -> str:
    """Losses of each mode and seed, and whether modes differ by more than seeds do."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in of_kind("loss curve"):
        settings, device = record.settings, record.environment.accelerator
        title = f"{device}, {record.subject}, {settings['steps']} steps of {settings['tokens']}"
        modes = found.setdefault(f"{title} tokens", {})
        modes.setdefault(str(settings["mode"]), {})[int(settings["seed"] or 0)] = record
    parts = list[str]()
    for title, modes in found.items():
        seeds = sorted({seed for records in modes.values() for seed in records})
        tests = ("more than values", "error of seeds", "within noise")
        rows = [["loss", "products of", *(f"seed {seed}" for seed in seeds), "mean", *tests]]
        for metric, name in LOSSES.items():
            base = [record.metrics[metric] for record in modes.get(VALUES, {}).values()]
            for mode, records in sorted(modes.items(), reverse=True):
                losses = {seed: record.metrics[metric] for seed, record in records.items()}
                own = [f"{losses[seed]:.4f}" if seed in losses else "-" for seed in seeds]
                mean = statistics.fmean(losses.values())
                compared = _compared(mean, base) if mode != VALUES else ["-"] * len(tests)
                rows.append([name, mode, *own, f"{mean:.4f}", *compared])
        days = _days(record for records in modes.values() for record in records.values())
        parts.append(f"{title}, {days}\n\n{markdown(rows, numbers=True)}")
    return "\n\n".join(parts) or NOTHING


def _compared(mean: float, base: list[float]) -> list[str]:
    """How far a mean lies above that of `base`, its standard error, and whether that covers it."""
    more = mean - statistics.fmean(base)
    error = statistics.stdev(base) / math.sqrt(len(base))
    return [f"{more:+.4f}", f"{error:.4f}", "yes" if abs(more) <= error else "no"]


def devices() -> str:
    """Training on several devices beside one."""
    found: dict[str, dict[tuple[int, bool], Record]] = {}
    for record in of_kind("training on several devices"):
        settings = record.settings
        title = (
            f"{record.environment.accelerator}, {settings['layers']} of {record.subject}, "
            f"{settings['tokens']} tokens a step, "
            f"{'compiled' if settings.get('compiled') else 'eager'}"
        )
        key = int(settings["devices"] or 1), bool(settings.get("keep_codes"))
        found.setdefault(title, {})[key] = record
    parts = list[str]()
    for title, each in found.items():
        rows = [["devices", "tokens/s", "times one", "last loss", "losses off by", "MB a gather",
                 "bf16 is times that", "peak, GB"]]  # fmt: skip
        one = each[1, False]
        for (count, kept), record in sorted(each.items()):
            metrics, losses = record.metrics, _losses(record)
            off = max(abs(b / a - 1) for a, b in zip(_losses(one), losses, strict=True))
            gathered = metrics.get("gathered_bytes")
            layers = int(record.settings["layers"] or 1)
            rows.append(
                [
                    f"{count}, codes kept" if kept else str(count),
                    f"{metrics['tokens_per_s']:.0f}",
                    f"{metrics['tokens_per_s'] / one.metrics['tokens_per_s']:.2f}",
                    f"{losses[-1]:.4f}",
                    f"{off:.2%}",
                    f"{gathered / layers / 1e6:.2f}" if gathered else "-",
                    f"{metrics['bf16_bytes'] / gathered:.2f}" if gathered else "-",
                    f"{metrics['peak_bytes'] / 1e9:.2f}",
                ]
            )
        parts.append(f"{title}, {_days(each.values())}\n\n{markdown(rows, numbers=True)}")
    return "\n\n".join(parts) or NOTHING


def _losses(record: Record) -> list[float]:
    return [value for name, value in record.metrics.items() if name.startswith("loss_")]


def _clock(record: Record) -> str:
    clock = record.metrics.get("clock_mhz")
    return f"{clock:.0f}" if clock is not None else "-"


def pages() -> dict[Path, str]:
    """The page with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    made = {"table": table, "whole step": whole, "curves": curves, "devices": devices}
    for name, make in made.items():
        text = fill(text, name, make())
    return {PAGE: text}


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/training/tables.py", pages)
