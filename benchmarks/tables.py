"""Writes the tables of README.md: from committed records, and of the operations there are.

python benchmarks/tables.py [--check]
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tercet.ops.discover import discover
from tercet.records.page import Row, fill, markdown, write_pages

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "benchmarks" / "demo" / "report.json"
PEERS = ROOT / "benchmarks" / "ptq_peers" / "records.jsonl"


def demo() -> list[Row]:
    """The demonstration: quality, size and speed of each format."""
    quality = ("model", "bits a weight", "MB", "vs bf16", "perplexity", "KL, nats", "top-1")
    rows = [[*quality, "tokens/s", "vs fp32", "of bandwidth", "peak MB"]]
    for record in json.loads(DEMO.read_text()):
        metrics: dict[str, float] = record["metrics"]
        student = "disk_bytes" in metrics
        rows.append(
            [
                Path(record["subject"]).name + ("" if student else ", fp32 by transformers"),
                f"{metrics['bits_per_weight']:.2f}" if student else "32",
                f"{metrics['disk_bytes'] / 1e6:.1f}" if student else "-",
                f"{metrics['ratio_to_bf16']:.1f}x" if student else "0.5x",
                f"{metrics['perplexity']:.2f}",
                f"{metrics['kl_nats']:.3f}",
                f"{metrics['top1_agreement']:.1%}",
                f"{metrics['decode_tokens_per_s']:.0f}",
                f"{metrics['speedup_over_fp32']:.1f}x",
                f"{metrics['bandwidth_share']:.0%}",
                f"{metrics['peak_resident_bytes'] / 1e6:.0f}",
            ]
        )
    return rows


def peers() -> list[Row]:
    """Post-training quantization against other libraries, best first within the bits."""
    records = [json.loads(line) for line in PEERS.read_text().splitlines()]
    records.sort(key=lambda record: (-record["bits_per_weight"], record["perplexity"]))
    rows = [["method", "bits a weight", "perplexity", "KL, nats", "top-1"]]
    for record in records:
        rows.append(
            [
                _name(record),
                f"{record['bits_per_weight']:.2f}",
                _number(record["perplexity"]),
                f"{record['kl']:.3f}",
                f"{record['top1']:.1%}",
            ]
        )
    return rows


def _name(record: dict[str, Any]) -> str:
    options = record["options"]
    detail = options.get("observer") or (f"axis {options['axis']}" if "axis" in options else "")
    return record["method"] + (f" ({detail})" if detail else "")


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def ops() -> list[Row]:
    """Every operation with its page, and what the benchmark compares it with."""
    folder = ROOT / "src" / "tercet" / "ops"
    rows = [["op", "page", "measured beside"]]
    for name, op in sorted(discover().items()):
        page = folder / name / "README.md"
        measured = "\nAll rows: [" in page.read_text(encoding="utf-8")
        beside = ", ".join(each.name for each in op.baselines if each.name != "eager")
        rows.append(
            [
                f"`{name}`",
                f"[{'table' if measured else 'checked'}]({page.relative_to(ROOT).as_posix()})",
                f"torch{', ' * bool(beside)}{beside}" if measured else "not measured yet",
            ]
        )
    return rows


TABLES: dict[str, Callable[[], list[Row]]] = {"demo": demo, "peers": peers, "ops": ops}


def pages() -> dict[Path, str]:
    """README.md with every table made anew."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        text = fill(text, f"table {name}", markdown(table(), numbers=name != "ops"))
    return {path: text}


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/tables.py", pages)
