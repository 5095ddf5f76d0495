"""Two runs side by side, question by question.

Both models answer the same questions, so their scores are not independent: what counts is where
they differ. Scores of 0 and 1 are compared by McNemar's test and Tango's interval, others by a
paired bootstrap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tercet.errors import CheckpointError
from tercet.evaluate.intervals import Pairs, bootstrap_bounds, mcnemar, tango_bounds
from tercet.evaluate.tasks.samples import Sample, answered, read_samples


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of a task in both runs.

    Attributes:
        task: its name.
        metric: as in Sample.scores.
        questions: how many; a question with several scores counts with their mean.
        first: mean of the first run.
        second: mean of the second run.
        difference: second minus first.
        low: of the difference, two-sided with the confidence asked for.
        high: as low.
        p_value: McNemar's, exact; None where scores are other than 0 and 1.
        first_only: questions that only the first answers right; None as p_value.
        second_only: as first_only.
    """

    task: str
    metric: str
    questions: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float | None
    first_only: float | None
    second_only: float | None


def compare_runs(
    first: Path, second: Path, tasks: Sequence[str] | None = None, confidence: float = 0.95
) -> list[Comparison]:
    """Every metric of the tasks in both runs.

    Args:
        first: folder of a run.
        second: folder of the other.
        tasks: names; None for all that both have answered.
        confidence: of the intervals.

    Raises:
        CheckpointError: no common task, a folder that is no run, or other questions.
    """
    names = list(tasks) if tasks is not None else common_tasks(first, second)
    found: list[Comparison] = []
    for task in names:
        pairs = pair_samples(first, second, task)
        for metric in pairs[0][0].scores:
            scores = [(_score(one, metric), _score(other, metric)) for one, other in pairs]
            found.append(_compare(task, metric, scores, confidence))
    return found


def common_tasks(first: Path, second: Path) -> list[str]:
    """Tasks that both runs have answered."""
    names = [name for name in answered(first) if name in answered(second)]
    if not names:
        raise CheckpointError(
            f"no task is answered in both: {first} has {', '.join(answered(first)) or 'none'}, "
            f"{second} has {', '.join(answered(second)) or 'none'}"
        )
    return names


def pair_samples(first: Path, second: Path, task: str) -> list[tuple[Sample, Sample]]:
    """Both runs' answers to each question of a task.

    Raises:
        CheckpointError: they were not asked the same: other rows, examples or prompts.
    """
    one, other = read_samples(first, task), read_samples(second, task)
    if len(one) != len(other):
        raise CheckpointError(
            f"{task}: {first} has {len(one)} questions, {second} has {len(other)}: ask both with "
            f"the same --limit"
        )
    for a, b in zip(one, other, strict=True):
        if (a.task, a.question, a.key) != (b.task, b.question, b.key):
            raise CheckpointError(
                f"{task}: question {a.question} of {a.task} is another in {second} than in "
                f"{first}: ask both with the same data, --shots and --chat"
            )
    return list(zip(one, other, strict=True))


def count_pairs(pairs: Sequence[tuple[Sample, Sample]], metric: str) -> Pairs:
    """The table of right and wrong answers, by a metric of 0 and 1."""
    scores = [(_score(one, metric), _score(other, metric)) for one, other in pairs]
    return _count(scores)


def _count(scores: Sequence[tuple[float, float]]) -> Pairs:
    return Pairs(
        first_only=sum(a == 1 and b != 1 for a, b in scores),
        second_only=sum(b == 1 and a != 1 for a, b in scores),
        questions=len(scores),
    )


def _score(sample: Sample, metric: str) -> float:
    score = sample.scores[metric]
    return sum(score) / len(score) if isinstance(score, list) else score


def _compare(
    task: str, metric: str, scores: Sequence[tuple[float, float]], confidence: float
) -> Comparison:
    differences = [b - a for a, b in scores]
    one_sided = (1 + confidence) / 2
    right_or_wrong = all(value in (0.0, 1.0) for pair in scores for value in pair)
    pairs = _count(scores)
    if right_or_wrong:
        lower, upper = tango_bounds(pairs, one_sided)
        low, high = -upper, -lower
    else:
        low, high = bootstrap_bounds(differences, one_sided)
    return Comparison(
        task=task,
        metric=metric,
        questions=len(scores),
        first=sum(a for a, _ in scores) / len(scores),
        second=sum(b for _, b in scores) / len(scores),
        difference=sum(differences) / len(differences),
        low=low,
        high=high,
        p_value=mcnemar(pairs) if right_or_wrong else None,
        first_only=pairs.first_only if right_or_wrong else None,
        second_only=pairs.second_only if right_or_wrong else None,
    )
