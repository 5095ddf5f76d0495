"""OpenBookQA, elementary science and everyday knowledge (arXiv:1809.02789)."""

from functools import partial

from tercet.evaluate.tasks.lettered_choices import split_choices
from tercet.evaluate.tasks.task import Task

TASKS = (
    Task(
        name="openbookqa",
        title="OpenBookQA: elementary science with everyday knowledge",
        definition="openbookqa/openbookqa.yaml",
        files={
            "train": "openbookqa/train.jsonl",
            "validation": "openbookqa/validation.jsonl",
            "test": "openbookqa/test.jsonl",
        },
        needed=("test",),
        metric="acc_norm",
        read=partial(split_choices, question="question_stem"),
    ),
)
