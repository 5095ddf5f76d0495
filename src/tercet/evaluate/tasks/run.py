"""One task on one model: the harness asks, the samples and a record come back."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from math import exp
from typing import Any, cast

import lm_eval.evaluator as harness

from tercet.evaluate.intervals import wilson
from tercet.evaluate.tasks.harness_task import compile_templates_once, quiet
from tercet.evaluate.tasks.language_model import PackedLM
from tercet.evaluate.tasks.samples import Sample
from tercet.evaluate.tasks.task import Task
from tercet.records import Environment, Record


def evaluate_task(
    model: PackedLM, built: dict[str, Any], *, limit: int | None, chat: bool
) -> list[Sample]:
    """Asks all questions of a task and scores the answers.

    Args:
        model: answers.
        built: the harness's tasks, by name.
        limit: questions of each of them, from the first; None for all.
        chat: write prompts by the model's chat template.
    """
    # all subjects at once: encoded and batched together, progress is over all questions
    with quiet(), compile_templates_once():
        results: Any = harness.evaluate(
            lm=model,
            task_dict={"tasks": built, "groups": {}},
            limit=limit,
            bootstrap_iters=0,
            apply_chat_template=chat,
            # a conversation that is already text needs no turns
            fewshot_as_multiturn=chat,
            # generated code is run by tercet.evaluate.tasks.run_code, in a sandbox
            confirm_run_unsafe_code=True,
        )
    return [one for name in built for one in _samples(name, results["samples"][name])]


def _samples(name: str, logged: Sequence[dict[str, Any]]) -> list[Sample]:
    """One sample a question, of the harness's one a question and filter."""
    by_question: dict[int, list[dict[str, Any]]] = {}
    for entry in logged:
        by_question.setdefault(entry["doc_id"], []).append(entry)
    return [_sample(name, entries) for entries in by_question.values()]


def _sample(name: str, entries: Sequence[dict[str, Any]]) -> Sample:
    first = entries[0]
    scores: dict[str, float | list[float]] = {}
    for entry in entries:
        suffix = "" if entry["filter"] == "none" else f",{entry['filter']}"
        for metric in entry["metrics"]:
            scores[f"{metric}{suffix}"] = _plain(entry[metric])
    asked = [first["doc_hash"], first["prompt_hash"], first["target_hash"]]
    return Sample(
        task=name,
        question=first["doc_id"],
        key=hashlib.sha256("".join(asked).encode()).hexdigest()[:16],
        target=json.loads(json.dumps(first["target"], default=str)),
        prompts=list(dict.fromkeys(str(arguments[0]) for arguments in first["arguments"])),
        responses=[responses[0] for responses in first["resps"]],
        scores=scores,
        row=json.loads(json.dumps(first["doc"], default=str)),
    )


def _plain(value: Any) -> float | list[float]:
    if isinstance(value, list | tuple):
        return [float(each) for each in cast(Sequence[Any], value)]
    return float(value)


def mean_scores(samples: Iterable[Sample]) -> dict[str, float]:
    """The mean of each metric over all questions; perplexity is exp(-mean log-likelihood)."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for metric, score in sample.scores.items():
            values.setdefault(metric, []).extend(score if isinstance(score, list) else [score])
    means = {metric: sum(found) / len(found) for metric, found in values.items()}
    if "perplexity" in means:
        means["perplexity"] = exp(min(-means["perplexity"], 700.0))
    return means


def chance(task: Task, built: dict[str, Any], samples: Sequence[Sample]) -> float | None:
    """The share that is right without reading the question; None where nothing says it.

    With choices it is the mean of 1 / choices; else what the task's thoughtless answer scores.
    """
    if task.thoughtless is not None:
        results = [
            built[sample.task].process_results(sample.row, [task.thoughtless]) for sample in samples
        ]
        return sum(float(one[task.metric]) for one in results) / len(samples)
    if len(samples[0].responses) > 1:
        return sum(1 / len(sample.responses) for sample in samples) / len(samples)
    return None


def record(
    task: Task,
    samples: Sequence[Sample],
    *,
    subject: str,
    settings: dict[str, Any],
    score_chance: float | None,
    environment: Environment,
    seconds: float,
) -> Record:
    """The task's scores, with a 95 % interval of the metric that it is known for."""
    right = sum(float(sample.scores[task.metric] == 1.0) for sample in samples)
    low, high = wilson(int(right), len(samples), 0.95)
    return Record(
        kind="task",
        subject=subject,
        settings={**settings, "task": task.name, "metric": task.metric},
        metrics={
            **mean_scores(samples),
            "score": right / len(samples),
            "score_low": low,
            "score_high": high,
            **({} if score_chance is None else {"score_chance": score_chance}),
            "questions": len(samples),
            "seconds": seconds,
        },
        environment=environment,
    )
