"""Judges trained checkpoints beside their teacher, on text and on tasks.

python benchmarks/training/judge.py CHECKPOINT... --teacher MODEL --text FILE --task-data DIR
    --record FILE [--device cuda]

Perplexity and divergence are those of `tercet eval` on the first 40 windows of 1024 tokens, tasks
those of `tercet eval --tasks arc_easy,piqa,lambada,hellaswag --limit 3000`. One record a model, the
teacher's first; a checkpoint's subject is its directory's name.
"""

import argparse
from pathlib import Path

from tercet.records import Record, append
from tercet.workflows.evaluation import evaluate
from tercet.workflows.tasks import evaluate_tasks, read_questions

TASKS = ("arc_easy", "piqa", "lambada", "hellaswag")
QUESTIONS, WINDOWS = 3000, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--task-data", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    directories = [str(one) for one in arguments.checkpoints]
    on_text = evaluate(
        directories,
        teacher=arguments.teacher,
        text=arguments.text,
        count=WINDOWS,
        device=arguments.device,
    )
    questions = read_questions(TASKS, data=arguments.task_data, limit=QUESTIONS)
    for found, model in zip(on_text, [arguments.teacher, *directories], strict=True):
        metrics = dict(found.metrics)
        for record in evaluate_tasks(model, questions, device=arguments.device):
            task = record.settings["task"]
            metrics[f"{task}_score"] = record.metrics["score"]
            metrics[f"{task}_questions"] = record.metrics["questions"]
        settings = {"text": arguments.text.name, "windows": WINDOWS, "window_tokens": 1024}
        record = Record(
            kind="trained model",
            subject=Path(model).name,
            settings=settings,
            metrics=metrics,
            environment=found.environment,
        )
        print(record.model_dump_json(indent=1), flush=True)
        append(arguments.record, [record])


if __name__ == "__main__":
    main()
