"""The demonstration: compress a real model to int4, nonary and ternary, and measure everything.

    python -m tercet.workflows.demo OUT

Writes OUT/report.json, OUT/records.jsonl and one packed checkpoint a format. A second run takes the
checkpoints that it finds, finishes one that was interrupted, and measures anew. Beside them stands
the ternary model of the same source that was trained, not only compressed.
"""

import json
import sys
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tercet.checkpoints.named_path import partial_directory
from tercet.checkpoints.packed.read import is_packed
from tercet.checkpoints.sources.fetch import fetch
from tercet.checkpoints.sources.open import open_source
from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import Calibration, load_plan
from tercet.errors import TercetError
from tercet.records import Environment, Record, append
from tercet.workflows.evaluation import evaluate
from tercet.workflows.inspection import inspect
from tercet.workflows.materialize import materialize
from tercet.workflows.speed import Speed, measure_packed, measure_transformers, read_bandwidth

MODEL = "smollm2-135m"
FORMATS = ("int4", "nonary", "ternary")
TRAINED = "smollm2-135m-ternary"
PROMPT = "What is the capital of France?"
TOKENS = 48
CALIBRATION = Calibration(sequences=16, length=512)
WINDOWS = 8
WINDOW_TOKENS = 1024

_status = Console(stderr=True)


def main(out: Path) -> None:
    """Runs the demonstration and prints its table."""
    out.mkdir(parents=True, exist_ok=True)
    directories = {name: _compress(out, name) for name in FORMATS}
    directories["ternary, trained"] = fetch(TRAINED, _say)
    _say("evaluating against the uncompressed model")
    records = evaluate(
        [str(path) for path in directories.values()], count=WINDOWS, length=WINDOW_TOKENS
    )
    _say("measuring speed and memory")
    speeds, bandwidth = _speeds(out, directories)
    texts = [speeds[record.subject].text for record in records]
    records = [_add_speed(record, speeds, bandwidth, directories) for record in records]
    append(out / "records.jsonl", records)
    report = [
        {**record.model_dump(mode="json"), "text": text}
        for record, text in zip(records, texts, strict=True)
    ]
    (out / "report.json").write_text(json.dumps(report, indent=1))
    console = Console()
    console.print(_table(records))
    for record, text in zip(records, texts, strict=True):
        console.print(f"[bold]{record.subject}[/bold]: {text.strip()}")
    console.print(f"written: {out / 'report.json'}")


def _compress(out: Path, name: str) -> Path:
    directory = out / f"{MODEL}-{name}"
    if is_packed(directory):
        inspect(directory, verify=True)
        return directory
    plan = load_plan(name).model_copy(update={"calibration": CALIBRATION})
    _say(f"compressing {MODEL} to {name}")
    with _status.status("reading") as status:
        compress(
            MODEL,
            plan,
            directory,
            resume=partial_directory(directory).exists(),
            progress=Progress(
                unit=lambda done, total, unit: status.update(f"{done} of {total} {unit}")
            ),
        )
    return directory


def _speeds(out: Path, directories: dict[str, Path]) -> tuple[dict[str, Speed], float]:
    original = materialize(open_source(MODEL), out / f"{MODEL}-fp32")
    # native code is built at the first use, which is not to be timed
    measure_packed(next(iter(directories.values())), PROMPT, tokens=2)
    speeds = {MODEL: measure_transformers(str(original), PROMPT, TOKENS)}
    for directory in directories.values():
        speeds[str(directory)] = measure_packed(directory, PROMPT, TOKENS)
    return speeds, read_bandwidth()


def _add_speed(
    record: Record, speeds: dict[str, Speed], bandwidth: float, directories: dict[str, Path]
) -> Record:
    """The record, under the model's name, with what its process measured.

    bandwidth_share is the part of the machine's read bandwidth that reading every weight once a
    token amounts to.
    """
    speed = speeds[record.subject]
    names = {str(path): f"{MODEL}-{name}" for name, path in directories.items()}
    weights = record.metrics.get("disk_bytes")
    if weights is None:
        weights = 4.0 * inspect(next(iter(directories.values())))["size"]["parameters"]
    metrics = {
        **record.metrics,
        **speed.metrics(),
        "read_bandwidth_bytes_per_s": bandwidth,
        "bandwidth_share": weights * speed.decode_tokens_per_s / bandwidth,
        "speedup_over_fp32": speed.decode_tokens_per_s / speeds[MODEL].decode_tokens_per_s,
    }
    settings = {**record.settings, "prompt": PROMPT, "new_tokens": TOKENS}
    return Record(
        kind="demo",
        subject=names.get(record.subject, record.subject),
        settings=settings,
        metrics=metrics,
        environment=Environment.here(),
    )


_COLUMNS = {
    "bits_per_weight": ("bits/weight", "{:.2f}"),
    "disk_bytes": ("bytes", "{:,.0f}"),
    "ratio_to_bf16": ("vs bf16", "{:.1f}x"),
    "ratio_to_fp32": ("vs fp32", "{:.1f}x"),
    "perplexity": ("perplexity", "{:.2f}"),
    "kl_nats": ("KL nats", "{:.3f}"),
    "top1_agreement": ("top-1", "{:.1%}"),
    "decode_tokens_per_s": ("tokens/s", "{:.1f}"),
    "speedup_over_fp32": ("vs fp32", "{:.2f}x"),
    "bandwidth_share": ("of bandwidth", "{:.0%}"),
    "peak_resident_bytes": ("peak bytes", "{:,.0f}"),
}


def _table(records: list[Record]) -> Table:
    settings = records[0].settings
    table = Table(
        title=f"{settings['text']}: {settings['windows']} windows of {settings['window_tokens']} "
        f"tokens; decoding {settings['new_tokens']} tokens at batch 1; the first column is "
        f"the uncompressed model by transformers in float32"
    )
    table.add_column("")
    for record in records:
        table.add_column(record.subject.removeprefix(f"{MODEL}-"), justify="right")
    for name, (title, form) in _COLUMNS.items():
        cells = [
            form.format(record.metrics[name]) if name in record.metrics else "-"
            for record in records
        ]
        table.add_row(title, *cells)
    return table


def _say(line: str) -> None:
    _status.print(line, style="dim")


if __name__ == "__main__":
    warnings.simplefilter("default")
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
    except TercetError as error:
        sys.exit(f"error: {error}")
