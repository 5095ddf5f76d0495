"""Writes the tables of README.md beside this file from the committed records.

python benchmarks/training/smollm2/tables.py [--check]

Of each student the newest record counts against goals; older ones are shown with it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tercet.records import Record, load
from tercet.records.page import Row, fill, markdown, write_pages

PAGE = Path(__file__).parent / "README.md"
PEERS = PAGE.parents[2] / "ptq_peers" / "records.jsonl"
# accuracy is by the sum of log-probabilities but for HellaSwag, where it is per byte
TASKS = {
    "arc_easy_accuracy": "ARC-Easy",
    "hellaswag_accuracy_per_byte": "HellaSwag",
    "piqa_accuracy": "PIQA",
    "lambada_accuracy": "LAMBADA",
}
TEACHER = "teacher"
# goals: how much more than the teacher's a student's perplexity may be, on the first 40 windows
PERPLEXITY_OVER_TEACHER = {"nonary-g64": 0.06, "ternary-g64": 0.45}
# without training, at the bits of a student's body
WITHOUT_TRAINING = {
    "nonary-g64": ("tercet_hadamard_nonary-g64", "hqq_w4_g64", "hqq_w3_g64"),
    "ternary-g64": ("tercet_hadamard_ternary-g64", "tercet_gptq_int2-g64-asym", "hqq_w2_g64"),
}


def newest() -> dict[str, Record]:
    """Subject -> its newest record, the teacher first."""
    found: dict[str, Record] = {}
    for record in load(PAGE.parent / "records.jsonl"):
        found[record.subject] = record
    return found


def shown() -> list[tuple[str, Record]]:
    """(name, record) of all runs, a student's newest first and called by the student's name."""
    found = list(newest().items())
    for record in load(PAGE.parent / "records.jsonl"):
        if record != dict(found)[record.subject]:
            place = [name for name, _ in found].index(record.subject) + 1
            found.insert(place, (f"{record.subject}, before", record))
    return found


def mean_accuracy(metrics: dict[str, float]) -> float:
    """Over the four tasks."""
    return sum(metrics[name] for name in TASKS) / len(TASKS)


def quality() -> list[Row]:
    """What each student costs and keeps."""
    teacher = newest()[TEACHER].metrics
    rows = [
        [
            "model",
            "MB",
            "vs bf16",
            "vs fp32",
            "perplexity",
            "over teacher",
            "whole test",
            "over teacher",
            "KL, nats",
            "top-1",
        ]
    ]
    for name, record in shown():
        m = record.metrics
        packed = "disk_bytes" in m
        rows.append(
            [
                name,
                f"{m['disk_bytes'] / 1e6:.1f}" if packed else "-",
                f"{m['ratio_to_bf16']:.1f}x" if packed else "-",
                f"{m['ratio_to_fp32']:.1f}x" if packed else "-",
                f"{m['perplexity']:.2f}",
                f"{m['perplexity'] / teacher['perplexity'] - 1:+.1%}",
                f"{m['perplexity_whole']:.2f}",
                f"{m['perplexity_whole'] / teacher['perplexity_whole'] - 1:+.1%}",
                f"{m['kl_nats']:.3f}",
                f"{m['top1_agreement']:.1%}",
            ]
        )
    return rows


def tasks() -> list[Row]:
    """Accuracy on each task."""
    whole = mean_accuracy(newest()[TEACHER].metrics)
    rows = [["model", *TASKS.values(), "mean", "of teacher's"]]
    for name, record in shown():
        mean = mean_accuracy(record.metrics)
        found = [f"{record.metrics[task]:.1%}" for task in TASKS]
        rows.append([name, *found, f"{mean:.1%}", f"{mean / whole:.1%}"])
    return rows


def goals() -> list[Row]:
    """What was asked of the students, and what was found."""
    records = newest()
    teacher = records[TEACHER].metrics
    rows = [["goal", "found"]]
    for name, most in PERPLEXITY_OVER_TEACHER.items():
        metrics = records[name].metrics
        first, whole = (
            metrics[key] / teacher[key] - 1 for key in ("perplexity", "perplexity_whole")
        )
        found = f"{_verdict(first <= most)}: {first:.1%} (all windows: {whole:.1%})"
        rows.append([f"{name} within {most:.0%} of the teacher's perplexity", found])
    share = mean_accuracy(records["ternary-g64"].metrics) / mean_accuracy(teacher)
    found = f"{_verdict(share >= 0.93)}: {share:.1%}"
    rows.append(["ternary-g64 at 93% of the teacher's mean accuracy", found])
    ratio = records["ternary-20x"].metrics["ratio_to_fp32"]
    found = f"{_verdict(ratio >= 20)}: {ratio:.1f} with the embedding ternary, too"
    rows.append(["20 times smaller than fp32", found])
    return rows


def _verdict(reached: bool) -> str:
    return "reached" if reached else "short"


def peers() -> list[Row]:
    """Students beside the best without training, on the same windows."""
    given = [json.loads(line) for line in PEERS.read_text(encoding="utf-8").splitlines()]
    best: dict[str, dict[str, Any]] = {}
    for record in given:
        old = best.get(record["method"])
        if old is None or record["perplexity"] < old["perplexity"]:
            best[record["method"]] = record
    records = newest()
    rows = [["body", "bits a weight", "perplexity", "KL, nats", "top-1"]]
    for name, methods in WITHOUT_TRAINING.items():
        if name in records:
            m = records[name].metrics
            rows.append(_peer(f"**{name}, distilled**", m["body_bits_per_weight"], m))
        for method in methods:
            one = best[method]
            m = {**one, "kl_nats": one["kl"], "top1_agreement": one["top1"]}
            rows.append(_peer(method, one["bits_per_weight"], m))
    return rows


def _peer(name: str, bits: float, metrics: dict[str, Any]) -> Row:
    return [
        name,
        f"{bits:.2f}",
        f"{metrics['perplexity']:.2f}",
        f"{metrics['kl_nats']:.3f}",
        f"{metrics['top1_agreement']:.1%}",
    ]


def runs() -> list[Row]:
    """How each student was made."""
    rows = [
        [
            "student",
            "body",
            "embedding",
            "method",
            "rate",
            "GPUs",
            "million tokens",
            "of text, million",
            "by teachers",
            "seconds",
        ]
    ]
    for name, record in shown():
        s = record.settings
        if "tokens" in s:
            about = [str(s[key]) for key in ("body", "embedding", "method", "rate")]
            rows.append(
                [
                    name,
                    *about,
                    str(s.get("gpus", 1)),
                    f"{int(s['tokens']) / 1e6:.1f}",
                    f"{int(s['text_tokens']) / 1e6:.1f}",
                    f"{int(s['own_tokens']) / 1e6:.1f}" if "own_tokens" in s else "-",
                    f"{s['train_seconds']:.0f}",
                ]
            )
    return rows


def curve() -> list[Row]:
    """Perplexity on WikiText-2 test against tokens, and the loss there."""
    rows = [
        ["student", "GPUs", "million tokens", "KL of the training text", "perplexity", "whole test"]
    ]
    last: dict[str, float] = {}
    gpus, tokens = "1", 0
    for line in _lines("curve.jsonl"):
        name = line.get("student") or line.get("subject")
        if line["what"] == "begins":
            last.clear()
            gpus = str(line.get("processes", 1))
        elif line["what"] == "step":
            last[name] = line["loss"]
        elif line["what"] == "trained":
            tokens = line["tokens"]
        elif line["what"] == "glance" and line["tokens"]:
            rows.append(_point(name, gpus, line["tokens"], last.get(name), line["perplexity"]))
        elif line["what"] == "evaluated" and name != TEACHER:
            point = _point(name, gpus, tokens, last.get(name), line["perplexity"])
            rows.append([*point[:-1], f"{line['perplexity_whole']:.2f}"])
    return rows


def unevaluated() -> list[Row]:
    """Curves of runs that ended before their evaluation."""
    rows = [["student", "GPUs", "million tokens", "rate", "KL of the training text", "perplexity"]]
    step: dict[str, float] = {}
    gpus = "1"
    for line in _lines("unevaluated.jsonl"):
        if line["what"] == "begins":
            step, gpus = {}, str(line.get("processes", 1))
        elif line["what"] == "step":
            step = line
        elif line["what"] == "glance" and step:
            point = _point(line["student"], gpus, line["tokens"], step["loss"], line["perplexity"])
            rows.append([*point[:3], f"{step['rate']:.1e}", *point[3:-1]])
    return rows


TRIALS = {
    "adam1024": "AdamW, windows of 1024",
    "adam256": "AdamW, windows of 256",
    "muon1024": "Muon, windows of 1024",
}


def trial() -> list[Row]:
    """Short runs side by side: perplexity, and the KL on the text of tasks with right answers."""
    rows = [
        ["student", "million tokens", "perplexity", *(f"KL, {name}" for name in TASKS.values())]
    ]
    found: dict[str, dict[str, Any]] = {name: {} for name in TRIALS}
    for line in _lines("trial.jsonl"):
        found[line.get("student") or line["subject"]] |= line
    for name, about in TRIALS.items():
        one = found[name]
        kls = [one[task.split("_accuracy")[0]][0] for task in TASKS]
        numbers = [f"{one['tokens'] / 1e6:.1f}", f"{one['perplexity']:.1f}"]
        rows.append([about, *numbers, *(f"{kl:.2f}" for kl in kls)])
    return rows


def _lines(name: str) -> list[dict[str, Any]]:
    text = (PAGE.parent / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _point(name: str, gpus: str, tokens: int, loss: float | None, perplexity: float) -> Row:
    kl = "-" if loss is None else f"{loss:.3f}"
    return [name, gpus, f"{tokens / 1e6:.1f}", kl, f"{perplexity:.2f}", "-"]


TABLES: dict[str, Callable[[], list[Row]]] = {
    "quality": quality,
    "tasks": tasks,
    "goals": goals,
    "peers": peers,
    "runs": runs,
    "curve": curve,
    "unevaluated": unevaluated,
    "trial": trial,
}


def pages() -> dict[Path, str]:
    """The page with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        text = fill(text, f"table {name}", markdown(make()))
    return {PAGE: text}


if __name__ == "__main__":
    write_pages(__doc__, "benchmarks/training/smollm2/tables.py", pages)
