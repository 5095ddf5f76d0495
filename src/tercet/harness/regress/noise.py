"""Noise: how far apart two timings of the same code lie, and so what counts as a difference.

All differences are logarithms of ratios, so that a slow and a fast row weigh alike. A row is slower
only where the logarithm of its ratio is beyond the largest of

    log(1.02)               differences below 2 % are not worth a day of anyone's time
    z * spread, largest     of the same version timed twice, over all rows
    z / 1.96 * half_width   of the row's own two medians

where z makes the chance of one false alarm among all rows of a run 1 in 1000 (Bonferroni), so ten
runs of the same code stay silent. An 8 % slow-down shows while the spread is below 1.7 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, median

from pydantic import BaseModel, ConfigDict

from tercet.errors import UnsupportedError

LEAST = 0.02
FALSE_ALARMS_PER_RUN = 0.001
_NORMAL_95 = 1.96
_MAD_TO_DEVIATION = 1.4826
_MEDIAN_TO_MEAN_ERROR = 1.2533


@dataclass(frozen=True, kw_only=True)
class Difference:
    """log(after / before) and the half of its 95 % confidence interval."""

    log_ratio: float
    half_width: float

    @property
    def ratio(self) -> float:
        """after / before."""
        return exp(self.log_ratio)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median with its 95 % confidence interval, in one unit."""

    low: float
    middle: float
    high: float


class Noise(BaseModel):
    """What is known of the noise of one run.

    Attributes:
        rows: how many rows were timed twice in the same version; 0 where none was.
        comparisons: how many rows are judged.
        spread: standard deviation of log(ratio) of the same version, from its median deviation.
        largest: the largest |log(ratio)| of the same version.
        z: how many standard deviations count as a difference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int
    comparisons: int
    spread: float
    largest: float
    z: float

    def limit(self, difference: Difference, least: float = LEAST) -> float:
        """The |log(ratio)| beyond which this row differs."""
        own = self.z / _NORMAL_95 * difference.half_width
        return max(log(1 + least), self.z * self.spread, self.largest, own)


def noise_of(same: Sequence[Difference], comparisons: int) -> Noise:
    """The noise, from rows of the same version timed twice."""
    sizes = [abs(difference.log_ratio) for difference in same]
    return Noise(
        rows=len(sizes),
        comparisons=comparisons,
        spread=_MAD_TO_DEVIATION * median(sizes) if sizes else 0.0,
        largest=max(sizes, default=0.0),
        z=NormalDist().inv_cdf(1 - FALSE_ALARMS_PER_RUN / max(comparisons, 1)),
    )


def between_intervals(before: Interval, after: Interval) -> Difference:
    """The difference of two medians that were taken apart."""
    for interval in (before, after):
        if not 0 < interval.low <= interval.middle <= interval.high:
            raise UnsupportedError(
                f"a timing's interval is ({interval.low}, {interval.middle}, {interval.high}): it "
                "must be positive, with the median inside"
            )
    halves = [log(interval.high / interval.low) / 2 for interval in (before, after)]
    return Difference(
        log_ratio=log(after.middle / before.middle),
        half_width=sqrt(halves[0] ** 2 + halves[1] ** 2),
    )


def between_rounds(before: Sequence[float], after: Sequence[float]) -> Difference:
    """The difference of two versions that were timed in turn: the median of each round's ratio.

    Drift of clocks and load that lasts longer than a round is in both times, and cancels.
    """
    ratios = [log(b / a) for a, b in zip(before, after, strict=True)]
    middle = median(ratios)
    deviation = _MAD_TO_DEVIATION * median(abs(ratio - middle) for ratio in ratios)
    error = _MEDIAN_TO_MEAN_ERROR * deviation / sqrt(len(ratios))
    return Difference(log_ratio=middle, half_width=_NORMAL_95 * error)
