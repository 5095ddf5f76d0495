"""Sequential: variants timed one after the other, each at the clock that its own power allows.

A GPU at its limit of power lowers its clock. Variants that are timed in turn share the clock of
their mixture: their times then compare cycles, and who takes less power gains nothing by it. In
production a kernel has its neighbours of the same model beside it, and the clock that they allow.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tercet.harness.timing.clock import Block, Timer
from tercet.harness.timing.device_state import DeviceState

_SAMPLES = 7
_SAMPLE_US = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What was measured of one block: microseconds per call, and the device while it ran."""

    samples: list[float]
    state: DeviceState | None


def time_sequentially(
    timer: Timer,
    blocks: Sequence[Block],
    settle_seconds: float,
    state: Callable[[], DeviceState | None],
) -> list[Timed]:
    """Times each block by itself after it has run for so long, twice, in opposite orders.

    Args:
        timer: of the device.
        blocks: one per variant.
        settle_seconds: what a block runs for before its samples are taken.
        state: tells the device's state; called while the block runs.
    """
    once = timer.round(blocks, [1] * len(blocks))
    lasting = [us * block.calls for us, block in zip(once, blocks, strict=True)]
    samples: list[list[float]] = [[] for _ in blocks]
    states: list[DeviceState | None] = [None for _ in blocks]
    forth = range(len(blocks))
    for order in (forth, reversed(forth)):
        for at in order:
            settle = _runs(settle_seconds * 1e6, lasting[at])
            timer.occupy(blocks[at], settle)
            if not samples[at]:
                states[at] = state()
                timer.occupy(blocks[at], settle)
            runs = _runs(_SAMPLE_US, lasting[at])
            samples[at] += timer.round([blocks[at]] * _SAMPLES, [runs] * _SAMPLES)
    return [Timed(samples=each, state=found) for each, found in zip(samples, states, strict=True)]


def _runs(total_us: float, each_us: float) -> int:
    return max(1, math.ceil(total_us / max(each_us, 0.1)))
