"""Gates: whether a compressed model lost more than was allowed, as far as the answers prove it.

The drop is the teacher's share of right answers minus the model's, on the same questions. With
Tango's score bounds on it, each at the confidence asked for:

    lower bound > limit     EXCEEDED: the loss is proven
    upper bound <= limit    WITHIN: it is proven that the loss is not larger
    else                    UNDECIDED: more questions are needed

Several tasks are several chances to fail by luck: each lower bound is taken at a confidence of
1 - (1 - confidence) / tasks (Bonferroni), so that a model without any loss beyond the limits fails
at most once in 1 / (1 - confidence) gates. To be within, all tasks must be, which needs no such
correction.
"""

from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from tercet.evaluate.intervals import Pairs, tango_bounds

_POWER = 0.8
_MOST_QUESTIONS = 10**7


class Verdict(StrEnum):
    """What the answers prove."""

    WITHIN = "within"
    EXCEEDED = "exceeded"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One task of a gate.

    Attributes:
        task: its name.
        metric: that is compared.
        pairs: right and wrong answers; the teacher's come first.
        limit: the largest drop that is allowed, as a share.
        low: bound of the drop from below, corrected for the number of tasks.
        high: bound from above.
        verdict: what is proven.
        more: how many more questions decide with a chance of 80 %, if both models go on as they
            did; None where it is decided, or where no number would.
    """

    task: str
    metric: str
    pairs: Pairs
    limit: float
    low: float
    high: float
    verdict: Verdict
    more: int | None


def decide(
    task: str, metric: str, pairs: Pairs, *, limit: float, confidence: float, tasks: int = 1
) -> Decision:
    """What the answers to one task prove.

    Args:
        task: its name.
        metric: that the pairs are counted by.
        pairs: the teacher's answers first.
        limit: the largest drop that is allowed, as a share.
        confidence: of the whole gate.
        tasks: how many the gate has.
    """
    corrected = 1 - (1 - confidence) / tasks
    low, high = tango_bounds(pairs, corrected)[0], tango_bounds(pairs, confidence)[1]
    verdict = Verdict.UNDECIDED
    if low > limit:
        verdict = Verdict.EXCEEDED
    elif high <= limit:
        verdict = Verdict.WITHIN
    more = None
    if verdict is Verdict.UNDECIDED:
        more = _count_more(pairs, limit, corrected if pairs.drop > limit else confidence)
    return Decision(
        task=task,
        metric=metric,
        pairs=pairs,
        limit=limit,
        low=low,
        high=high,
        verdict=verdict,
        more=more,
    )


def overall(decisions: list[Decision]) -> Verdict:
    """The gate's verdict: one proven loss fails it, and one open task leaves it open."""
    verdicts = {decision.verdict for decision in decisions}
    for verdict in (Verdict.EXCEEDED, Verdict.UNDECIDED):
        if verdict in verdicts:
            return verdict
    return Verdict.WITHIN


def _count_more(pairs: Pairs, limit: float, confidence: float) -> int | None:
    """Questions beyond those asked at which the bound passes the limit, with a margin of power.

    The bound is taken at z(confidence) + z(power): the usual size of a sample for one proportion,
    with Tango's variance.
    """
    normal = NormalDist()
    strict = normal.cdf(normal.inv_cdf(confidence) + normal.inv_cdf(_POWER))

    def decides(questions: int) -> bool:
        grown = pairs.grown(questions)
        low, high = tango_bounds(grown, strict)
        return low > limit if pairs.drop > limit else high <= limit

    enough = pairs.questions
    while not decides(enough):
        enough *= 2
        if enough > _MOST_QUESTIONS:
            return None
    few = max(enough // 2, pairs.questions)
    while enough - few > 1:
        middle = (few + enough) // 2
        if decides(middle):
            enough = middle
        else:
            few = middle
    return max(enough - pairs.questions, 1)
