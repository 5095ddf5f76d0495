"""HumanEval, functions to be written from their docstrings (arXiv:2107.03374).

The harness's own scorer loads a program from the hub, which runs answers in this process. Here an
answer runs in a process of its own that is closed in (`tercet.child_process.untrusted`).
"""

from typing import Any

from tercet.child_process.untrusted import run_untrusted
from tercet.evaluate.tasks.task import Row, Task


def program(row: Row, answer: str) -> str:
    """The function, its tests and the call of these, as the publisher puts them together."""
    return f"{row['prompt']}{answer}\n{row['test']}\ncheck({row['entry_point']})"


def _score(row: Row, answers: list[str]) -> dict[str, Any]:
    ending = run_untrusted(program(row, answers[0]))
    return {"pass@1": float(ending.error is None)}


TASKS = (
    Task(
        name="humaneval",
        title="HumanEval: functions written from their docstrings, run against tests",
        definition="humaneval/humaneval.yaml",
        files={"test": "humaneval/HumanEval.jsonl"},
        needed=("test",),
        metric="pass@1",
        overrides={
            "process_results": _score,
            "metric_list": [{"metric": "pass@1", "aggregation": "mean", "higher_is_better": True}],
            "filter_list": None,
        },
        runs_answers=True,
        resolve=False,
    ),
)
