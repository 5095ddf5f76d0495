"""Writes the tables of README.md and of guides: from committed records, and of the operations.

python benchmarks/tables.py [--check]
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tercet.compress.allocate.costs import correct
from tercet.compress.allocate.sensitivity_file import Observed
from tercet.ops.discover import discover
from tercet.records import Record, load_latest
from tercet.records.page import Row, fill, markdown, write_pages

ROOT = Path(__file__).parent.parent
TRAINED = ROOT / "benchmarks" / "training" / "trained.jsonl"
DEMO = ROOT / "benchmarks" / "demo" / "report.json"
PEERS = ROOT / "benchmarks" / "ptq_peers" / "records.jsonl"
ALLOCATION = ROOT / "benchmarks" / "compress" / "allocation.jsonl"
LATENCY = ROOT / "benchmarks" / "compress" / "latency.jsonl"
EMBEDDINGS = ROOT / "benchmarks" / "compress" / "embedding.jsonl"
TASKS = ROOT / "benchmarks" / "tasks" / "records.jsonl"
FINETUNING_SPEED = ROOT / "benchmarks" / "training" / "finetune.jsonl"
BLOCKWISE = ROOT / "benchmarks" / "ptq_peers" / "blockwise.jsonl"


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
                *_quality(metrics["perplexity"], metrics["kl_nats"], metrics["top1_agreement"]),
                f"{metrics['decode_tokens_per_s']:.0f}",
                f"{metrics['speedup_over_fp32']:.1f}x",
                f"{metrics['bandwidth_share']:.0%}",
                f"{metrics['peak_resident_bytes'] / 1e6:.0f}",
            ]
        )
    return rows


def embeddings() -> list[Row]:
    """What 4 bits in embedding and head, which are one matrix, cost and save."""
    sizes = ("plan", "embedding and head", "bits a weight", "MB")
    rows = [[*sizes, "perplexity", "KL, nats", "top-1"]]
    for record in load_latest(EMBEDDINGS):
        found, settings = record.metrics, record.settings
        rows.append(
            [
                str(settings["plan"]),
                str(settings["embedding"]),
                f"{found['bits_per_weight']:.2f}",
                f"{found['disk_bytes'] / 1e6:.1f}",
                *_quality(found["perplexity"], found["kl_nats"], found["top1_agreement"]),
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
                *_quality(record["perplexity"], record["kl"], record["top1"]),
            ]
        )
    return rows


def blockwise() -> list[Row]:
    """The algorithm alone, layers trained for their output, and the whole trained after that."""
    columns = ("format", "bits a weight", "training", "sequences", "text", "perplexity", "KL, nats")
    rows = [[*columns, "top-1", "seconds", "GPU memory, GB"]]
    for record in sorted(load_latest(BLOCKWISE), key=_in_order):
        if _tries_finetuning(record):
            continue
        settings, found = record.settings, record.metrics
        layers = "layers" if settings["blockwise"] else "none: GPTQ alone"
        rows.append(
            [
                str(settings["format"]),
                f"{found['bits_per_weight']:.2f}",
                f"{layers}, then the whole" if settings.get("finetune") else layers,
                str(settings["sequences"]),
                str(settings["windows"]),
                *_quality(found["perplexity"], found["kl"], found["top1"]),
                f"{found['seconds']:.0f}",
                f"{found['device_peak_bytes'] / 1e9:.1f}",
            ]
        )
    return rows


def _in_order(record: Record) -> tuple[Any, ...]:
    settings, bits = record.settings, record.metrics["bits_per_weight"]
    trained = settings["blockwise"], settings["sequences"], settings.get("finetune", False)
    return settings["windows"], -bits, *trained


def finetuning() -> list[Row]:
    """Settings of the training of the whole, on validation text, the best held-out KL first."""
    rows = [["levels", "scales", "epochs", "held-out KL", "perplexity", "KL, nats", "seconds"]]
    records = [one for one in load_latest(BLOCKWISE) if _tries_finetuning(one)]
    for record in sorted(records, key=lambda one: one.metrics["held_out_kl_after"]):
        settings, found = record.settings, record.metrics
        rate = f"{settings['finetune_learning_rate']:g}"
        rows.append(
            [
                rate if settings["finetune_levels"] else "stay",
                f"{settings['finetune_scale_learning_rate']:g}",
                str(settings["finetune_epochs"]),
                f"{found['held_out_kl_before']:.4f} to {found['held_out_kl_after']:.4f}",
                _number(found["perplexity"]),
                f"{found['kl']:.4f}",
                f"{found['seconds']:.0f}",
            ]
        )
    return rows


def finetuning_speed() -> list[Row]:
    """Speed and memory of fine-tuning embedding, head and layers, and of the teacher's writing."""
    rows = [["format", "batch", "windows", "tokens/s", "tokens/s by the teacher", "GPU memory, GB"]]
    for record in load_latest(FINETUNING_SPEED):
        found, settings = record.metrics, record.settings
        rows.append(
            [
                record.subject,
                str(settings["batch"]),
                str(settings["length"]),
                f"{found['tokens_per_s']:,.0f}",
                f"{found['text_by_teacher_tokens_per_s']:,.0f}",
                f"{found['device_peak_bytes'] / 1e9:.1f}",
            ]
        )
    return rows


def _tries_finetuning(record: Record) -> bool:
    return record.settings["windows"] == "validation" and bool(record.settings.get("finetune"))


def latency() -> list[Row]:
    """Allocations by latency: what was predicted of a token's time, and what it took."""
    rows: list[Row] = [
        ["model's shape", "device", "limit, us", "predicted", "timed", "bits a weight",
         "formats timed, s", "allocated, s"],
    ]  # fmt: skip
    for record in load_latest(LATENCY):
        found = record.metrics
        off = found["predicted_us"] / found["measured_us"] - 1
        rows.append(
            [
                record.subject,
                str(record.environment.accelerator),
                f"{found['limit_us']:.0f}",
                f"{found['predicted_us']:.0f} ({off:+.1%})",
                f"{found['measured_us']:.0f}",
                f"{found['bits_per_weight']:.2f}",
                f"{found['timing_seconds']:.0f}",
                f"{found['allocation_seconds']:.0f}",
            ]
        )
    return rows


def allocation() -> list[Row]:
    """Allocated plans beside the best uniform one that is not larger, and what was predicted."""
    records = load_latest(ALLOCATION)
    allocated = [one for one in records if one.settings["budget_bits"] is not None]
    uniform = [one for one in records if one.settings["budget_bits"] is None]
    columns = ("budget", "bits a weight", "perplexity", "best uniform plan", "its perplexity")
    rows = [[*columns, "gap closed", "KL, nats", "predicted", "by uniform plans"]]
    observed: list[Observed] = []
    for record in sorted(allocated, key=lambda one: one.metrics["bits_per_weight"]):
        found, budget = record.metrics, float(str(record.settings["budget_bits"]))
        best = min(
            (one for one in uniform if one.metrics["bits_per_weight"] <= budget + 5e-3),
            key=lambda one: one.metrics["perplexity"],
        )
        measured, total = found["windows_kl_nats"], found["sum_nats"]
        predicted = correct(total, observed)
        observed.append(Observed(sum_nats=total, observed_kl_nats=measured))
        rows.append(
            [
                f"{budget:g}",
                f"{found['bits_per_weight']:.3f}",
                _number(found["perplexity"]),
                f"{best.settings['plan']} ({best.metrics['bits_per_weight']:.2f} bits)",
                _number(best.metrics["perplexity"]),
                f"{found['gap_share']:.0%}",
                f"{measured:.3f}",
                f"{predicted:.3f} ({predicted / measured - 1:+.0%})",
                f"{found['predicted_kl_nats'] / measured - 1:+.0%}",
            ]
        )
    return rows


def tasks() -> list[Row]:
    """Scores of tasks, and what they took once the model was open."""
    rows = [["model", "task", "questions", "shots", "score", "95 % interval", "on", "seconds"]]
    for record in load_latest(TASKS):
        found, settings = record.metrics, record.settings
        rows.append(
            [
                record.subject,
                str(settings["task"]),
                f"{found['questions']:,.0f}",
                "-" if settings["shots"] is None else str(settings["shots"]),
                f"{found['score']:.1%}",
                f"{found['score_low']:.1%} to {found['score_high']:.1%}",
                record.environment.accelerator or record.environment.processor,
                f"{found['seconds']:.0f}",
            ]
        )
    return rows


def _name(record: dict[str, Any]) -> str:
    options = record["options"]
    detail = options.get("observer") or (f"axis {options['axis']}" if "axis" in options else "")
    return record["method"] + (f" ({detail})" if detail else "")


def _quality(perplexity: float, divergence: float, top1: float) -> Row:
    """Cells of perplexity, KL in nats and top-1 agreement."""
    return [_number(perplexity), f"{divergence:.3f}", f"{top1:.1%}"]


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


def trained() -> list[Row]:
    """What recipes gave beside their teacher: on text, and on tasks without examples."""
    scores = {
        "arc_easy": "ARC-Easy",
        "piqa": "PIQA",
        "lambada": "LAMBADA",
        "hellaswag": "HellaSwag",
    }
    quality = ("model", "MB", "bits a weight", "perplexity", "its 95 % interval", "over teacher")
    rows = [
        [*quality, "KL, nats", "top-1", *scores.values(), "mean, its 95 % interval", "of teacher's"]
    ]
    records = sorted(load_latest(TRAINED), key=lambda record: "disk_bytes" in record.metrics)
    known = records[0].metrics
    whole = _mean_score(known, scores)[0]
    for record in records:
        found = record.metrics
        student = "disk_bytes" in found
        mean, error = _mean_score(found, scores)
        rows.append(
            [
                record.subject,
                f"{found['disk_bytes'] / 1e6:.1f}" if student else "-",
                f"{found['bits_per_weight']:.2f}" if student else "-",
                f"{found['perplexity']:.2f}",
                f"{found['perplexity_low']:.1f} to {found['perplexity_high']:.1f}",
                f"{found['perplexity'] / known['perplexity'] - 1:+.1%}" if student else "-",
                f"{found['kl_nats']:.3f}",
                f"{found['top1_agreement']:.1%}",
                *(f"{found[f'{task}_score']:.1%}" for task in scores),
                f"{mean:.1%} ± {1.96 * error:.1%}",
                f"{mean / whole:.1%}",
            ]
        )
    return rows


def _mean_score(found: Mapping[str, float], tasks: Iterable[str]) -> tuple[float, float]:
    """The mean over tasks, and its standard error over their questions."""
    pairs = [(found[f"{task}_score"], found[f"{task}_questions"]) for task in tasks]
    variance = sum(score * (1 - score) / count for score, count in pairs)
    return sum(score for score, _ in pairs) / len(pairs), variance**0.5 / len(pairs)


README = ROOT / "README.md"
MODELS = ROOT / "models" / "README.md"
GUIDES = ROOT / "docs" / "guides"
TABLES: dict[str, tuple[Path, Callable[[], list[Row]]]] = {
    "demo": (README, demo),
    "embeddings": (README, embeddings),
    "peers": (README, peers),
    "ops": (README, ops),
    "blockwise": (GUIDES / "blockwise.md", blockwise),
    "finetuning speed": (GUIDES / "blockwise.md", finetuning_speed),
    "finetuning": (GUIDES / "blockwise.md", finetuning),
    "tasks": (GUIDES / "evaluate-tasks.md", tasks),
    "allocation": (GUIDES / "allocate-bits.md", allocation),
    "latency": (GUIDES / "allocate-bits.md", latency),
    "trained": (MODELS, trained),
}


def pages() -> dict[Path, str]:
    """Every page with every table made anew."""
    found: dict[Path, str] = {}
    for name, (path, table) in TABLES.items():
        text = found.get(path) or path.read_text(encoding="utf-8")
        found[path] = fill(text, f"table {name}", markdown(table(), numbers=name != "ops"))
    return found


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/tables.py", pages)
