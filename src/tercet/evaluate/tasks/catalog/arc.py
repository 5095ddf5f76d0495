"""ARC, questions of science exams for schools (arXiv:1803.05457), in an easy and a hard set."""

from functools import partial

from tercet.evaluate.tasks.lettered_choices import split_choices
from tercet.evaluate.tasks.task import Task

TASKS = tuple(
    Task(
        name=f"arc_{level.lower()}",
        title=f"ARC-{level}: science questions of school exams",
        definition=f"arc/arc_{level.lower()}.yaml",
        files={
            "train": f"arc/ARC-{level}-train.jsonl",
            "validation": f"arc/ARC-{level}-validation.jsonl",
            "test": f"arc/ARC-{level}-test.jsonl",
        },
        needed=("test",),
        metric=metric,
        read=partial(split_choices, question="question"),
    )
    for level, metric in (("Easy", "acc"), ("Challenge", "acc_norm"))
)
