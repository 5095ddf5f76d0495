"""PIQA, which of two ways reaches a goal in the physical world (arXiv:1911.11641)."""

from tercet.evaluate.tasks.task import Task

TASKS = (
    Task(
        name="piqa",
        title="PIQA: which of two ways reaches a physical goal",
        definition="piqa/piqa.yaml",
        files={"train": "piqa/train.jsonl", "validation": "piqa/validation.jsonl"},
        needed=("validation",),
        metric="acc",
    ),
)
