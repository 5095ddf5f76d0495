"""Writes the measured tables of README.md from committed records.

python benchmarks/tables.py [--check]

Each table stands between `<!-- table NAME -->` and `<!-- end -->`; --check fails where one is out
of date instead of writing it.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "benchmarks" / "demo" / "report.json"
PEERS = ROOT / "benchmarks" / "ptq_peers" / "records.jsonl"

Row = list[str]


def demo() -> list[Row]:
    """The demonstration: quality, size and speed of each format."""
    if not DEMO.exists():
        return [["not measured"]]
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


def markdown(rows: list[Row]) -> str:
    """A Markdown table; a single cell stands alone."""
    if len(rows) == 1:
        return rows[0][0]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|---|" + "---:|" * (len(rows[0]) - 1)
    return "\n".join([lines[0], rule, *lines[1:]])


TABLES: dict[str, Callable[[], list[Row]]] = {"demo": demo, "peers": peers}


def filled(text: str) -> str:
    """The text with every table made anew."""
    for name, table in TABLES.items():
        start, end = f"<!-- table {name} -->", "<!-- end -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        text = f"{before}{start}\n{markdown(table())}\n{end}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    path = ROOT / "README.md"
    old = path.read_text()
    new = filled(old)
    if parser.parse_args().check:
        sys.exit(old != new and "README.md is out of date: run python benchmarks/tables.py")
    path.write_text(new)


if __name__ == "__main__":
    main()
