"""The tables of benchmarks/training/smollm2/README.md say what its records say."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tercet.records import Environment, Record, append


@pytest.fixture
def tables(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/training/smollm2/tables.py")


def result(subject: str, perplexity: float, accuracy: float, **size: float) -> Record:
    tasks = ("arc_easy_accuracy", "hellaswag_accuracy_per_byte", "piqa_accuracy")
    metrics = dict.fromkeys((*tasks, "lambada_accuracy"), accuracy)
    quality = {"perplexity": perplexity, "perplexity_whole": 2 * perplexity, "kl_nats": 0.25}
    return Record(
        kind="distillation",
        subject=subject,
        settings={},
        metrics={**metrics, **quality, "top1_agreement": 0.75, **size},
        environment=Environment.here("NVIDIA H200"),
    )


def test_students_are_compared_with_the_teacher(
    tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = {"disk_bytes": 2e6, "ratio_to_bf16": 5.0, "ratio_to_fp32": 10.0}
    records = [
        result("teacher", 20.0, 0.5),
        result("student", 90.0, 0.1, **size),
        result("student", 25.0, 0.45, **size),
    ]
    append(tmp_path / "records.jsonl", records)
    monkeypatch.setattr(tables, "PAGE", tmp_path / "README.md")
    found = "2.0 5.0x 10.0x 25.00 +25.0% 50.00 +25.0% 0.250 75.0%"
    assert tables.quality()[-2] == ["student", *found.split()]
    assert tables.tasks()[-2:] == [
        ["student", *["45.0%"] * 5, "90.0%"],
        ["student, before", *["10.0%"] * 5, "20.0%"],
    ]


def test_goals_are_judged_by_the_records(
    tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        result("teacher", 20.0, 0.5),
        result("nonary-g64", 21.0, 0.5),
        result("ternary-g64", 30.0, 0.45),
        result("ternary-20x", 40.0, 0.4, ratio_to_fp32=20.25),
    ]
    append(tmp_path / "records.jsonl", records)
    monkeypatch.setattr(tables, "PAGE", tmp_path / "README.md")
    assert [found for _, found in tables.goals()[1:]] == [
        "reached: 5.0% (all windows: 5.0%)",
        "short: 50.0% (all windows: 50.0%)",
        "short: 90.0%",
        "reached: 20.2 with the embedding ternary, too",
    ]
