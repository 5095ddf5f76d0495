"""HellaSwag, how a described scene goes on (arXiv:1905.07830)."""

from tercet.evaluate.tasks.task import Task

TASKS = (
    Task(
        name="hellaswag",
        title="HellaSwag: how a described scene goes on",
        definition="hellaswag/hellaswag.yaml",
        files={"train": "hellaswag/train.jsonl", "validation": "hellaswag/validation.jsonl"},
        needed=("validation",),
        metric="acc_norm",
    ),
)
