"""Interleave: variants timed in turn, round after round, so that clock drift hits all alike."""

from collections.abc import Sequence

from tercet.harness.timing.clock import Block, Timer, repeats_for, seconds_now
from tercet.harness.timing.statistics import TARGET, is_settled

_LEAST_ROUNDS = 7
_MOST_ROUNDS = 2000


def interleave(
    timer: Timer, blocks: Sequence[Block], seconds: float, target: float = TARGET
) -> list[list[float]]:
    """Microseconds per call of each block, one sample a round.

    Each round times every block once, starting with another one than the round before. It ends when
    each block's median is known to `target` of itself, or the time is spent; never before seven
    rounds, under which a median has no 95 % interval.

    Args:
        timer: of the device.
        blocks: one per variant.
        seconds: to spend on each block, about.
        target: half-width of the interval, as a share of the median.
    """
    if not blocks:
        return []
    repeats = repeats_for(timer, blocks)
    samples: list[list[float]] = [[] for _ in blocks]
    end = seconds_now() + seconds * len(blocks)
    for number in range(_MOST_ROUNDS):
        first = number % len(blocks)
        order = [*range(first, len(blocks)), *range(first)]
        times = timer.round([blocks[at] for at in order], [repeats[at] for at in order])
        for at, us in zip(order, times, strict=True):
            samples[at].append(us)
        if number + 1 < _LEAST_ROUNDS:
            continue
        if seconds_now() > end or all(is_settled(each, target) for each in samples):
            break
    return samples
