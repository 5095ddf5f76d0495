"""GSM8K, word problems of grade-school mathematics (arXiv:2110.14168)."""

from tercet.evaluate.tasks.task import Task

TASKS = (
    Task(
        name="gsm8k",
        title="GSM8K: word problems of grade-school mathematics",
        definition="gsm8k/gsm8k.yaml",
        files={"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
        needed=("test",),
        metric="exact_match,strict-match",
    ),
)
