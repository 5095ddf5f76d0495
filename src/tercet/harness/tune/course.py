"""Tune course: checks and races configurations on one workload in one direction."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

from tercet.harness.bench.rotation import Rotation, copies_needed
from tercet.harness.bench.variant import Built, Cache, Launch, Variant
from tercet.harness.check.at_scale import check_workload
from tercet.harness.sandbox.try_run import Failure, try_run
from tercet.harness.timing.clock import Timer, seconds_now
from tercet.harness.timing.interleave import interleave
from tercet.harness.timing.memory import cache_bytes, free_bytes, peak_bytes, tensor_bytes
from tercet.harness.timing.statistics import Interval, median_interval
from tercet.harness.tune.configuration_outcome import ConfigurationOutcome
from tercet.harness.tune.search import Configuration
from tercet.harness.workloads.gradients import select_differentiable
from tercet.kernel import tuned
from tercet.kernel.contract import Kernels, Op, Sizes, Workload, outputs_of
from tercet.kernel.select import using
from tercet.kernel.tuned import Direction
from tercet.records import Outcome

_HEAT_SECONDS = 0.02
_FINAL_SECONDS = 1.0
_WARM_CALLS = 16
_FIELD = 9


class Course:
    """Checks and times configurations; remembers every one.

    Args:
        op, implementation, kernels: what is tuned.
        workload, direction: on which call.
        device, seed: where, and of the inputs.
        timer, stream: of `timing_on`.
        seconds: until no new race starts.

    Attributes:
        trials: what became of each configuration.
        asked: the sizes at which the kernel asked for its configuration, each once.
    """

    def __init__(
        self,
        op: Op,
        implementation: str,
        kernels: Kernels,
        workload: Workload,
        direction: Direction,
        *,
        device: str,
        seed: int,
        timer: Timer,
        stream: Any,
        seconds: float,
    ) -> None:
        self._op, self._implementation, self._kernels = op, implementation, kernels
        self._workload: Workload = workload
        self._direction: Direction = direction
        self._device, self._seed, self._timer, self._stream = device, seed, timer, stream
        self._end = seconds_now() + seconds
        self._rotation = Rotation(op, workload, seed, device, gradient=direction == "backward")
        prepared = self._rotation.copies[0].prepared
        self._names = select_differentiable(op, prepared) if direction == "backward" else ()
        self._launch: Launch = "eager" if device == "cpu" else "graph"
        self._cache: Cache = "warm"
        self._room_known = False
        self.trials = dict[tuple[tuple[str, int], ...], ConfigurationOutcome]()
        self.asked = list[Sizes]()

    def spent(self) -> bool:
        """Whether the time is up."""
        return seconds_now() > self._end

    def race(self, field: Sequence[Configuration]) -> Configuration | None:
        """The fastest right configuration: all are timed in turn, the slower half drops out."""
        built = self._build(field)
        seconds = _HEAT_SECONDS
        while built:
            intervals = self._time([each for _, each in built], seconds)
            if intervals is None:
                return None
            for (configuration, _), interval in zip(built, intervals, strict=True):
                self._remember(configuration, interval)
            if len(built) == 1:
                return built[0][0]
            medians = [interval.median for interval in intervals]
            order = sorted(range(len(built)), key=medians.__getitem__)
            built = [built[at] for at in order[: ceil(len(built) / 2)]]
            seconds *= 2
        return None

    def duel(self, configuration: Configuration) -> tuple[Interval, Interval] | None:
        """The default and this configuration, timed in turn at length; None where one failed."""
        built = self._build([{}, configuration])
        if len(built) != 2:
            return None
        intervals = self._time([each for _, each in built], _FINAL_SECONDS)
        if intervals is None:
            return None
        for (each, _), interval in zip(built, intervals, strict=True):
            self._remember(each, interval)
        return intervals[0], intervals[1]

    def _time(self, built: Sequence[Built], seconds: float) -> list[Interval] | None:
        blocks = [each.blocks[self._cache, self._launch] for each in built]
        samples = try_run(lambda: interleave(self._timer, blocks, seconds))
        if isinstance(samples, Failure):
            return None
        return [median_interval(each) for each in samples]

    def _build(self, field: Sequence[Configuration]) -> list[tuple[Configuration, Built]]:
        """Those of the field that are right, ready to be timed."""
        built = list[tuple[Configuration, Built]]()
        for configuration in field:
            known = self.trials.get(_key(configuration))
            if known is not None and known.outcome is not Outcome.OK:
                continue
            if known is None and not self._right(configuration):
                continue
            one = try_run(lambda configuration=configuration: self._one(configuration))
            if isinstance(one, Failure):
                self._refuse(configuration, Outcome.FAILED, one.reason)
            else:
                built.append((configuration, one))
        return built

    def _right(self, configuration: Configuration) -> bool:
        with self._around(configuration):
            findings = try_run(
                lambda: check_workload(
                    self._op,
                    self._kernels,
                    self._workload,
                    implementation=self._implementation,
                    device=self._device,
                    seed=self._seed,
                    gradient=self._direction == "backward",
                )
            )
        if isinstance(findings, Failure):
            self._refuse(configuration, Outcome.FAILED, findings.reason)
            return False
        wrong = [finding for finding in findings if not finding.passed]
        if wrong:
            self._refuse(configuration, Outcome.WRONG, f"{wrong[0].check}: {wrong[0].message}")
        return not wrong

    def _one(self, configuration: Configuration) -> Built:
        built = Built(
            variant=Variant(
                name=" ".join(f"{name}={value}" for name, value in configuration.items()),
                call=lambda prepared: outputs_of(self._op.run(*prepared.values())),
                around=lambda: self._around(configuration),
                judged_as=self._op,
            ),
        )
        first = self._rotation.copies[:1]
        held = peak_bytes(
            lambda: built.add_copies(first, self._direction, self._names), self._device
        )
        results = built.first_call(self._device)
        if not self._room_known:
            self._grow((held or 0) + (built.peak_bytes or tensor_bytes(results)))
        if self._cache == "cold":
            built.add_copies(self._rotation.copies[1:], self._direction, self._names)
        built.prepare(self._cache, self._launch, _WARM_CALLS, self._stream)
        return built

    def _grow(self, extra_bytes: int) -> None:
        """Copies for cold times where a whole field fits in memory; else warm times decide."""
        self._room_known = True
        copy_bytes = self._rotation.copies[0].size_bytes
        each = max(1, copy_bytes + _FIELD * extra_bytes)
        room = 1 + free_bytes(self._device) // each
        count = copies_needed(copy_bytes, cache_bytes(self._device), room)
        if isinstance(count, int):
            self._cache = "cold"
            self._rotation.grow(count)

    @contextmanager
    def _around(self, configuration: Configuration) -> Generator[None]:
        forced = tuned.force(self._op.name, self._implementation, self._direction, configuration)
        with using(self._op, self._kernels), forced as asked:
            yield
        self.asked += [sizes for sizes in asked if sizes not in self.asked]

    def _remember(self, configuration: Configuration, interval: Interval) -> None:
        self.trials[_key(configuration)] = ConfigurationOutcome(
            configuration=configuration,
            outcome=Outcome.OK,
            time_us=interval.median,
            time_us_low=interval.low,
            time_us_high=interval.high,
        )

    def _refuse(self, configuration: Configuration, outcome: Outcome, reason: str) -> None:
        self.trials[_key(configuration)] = ConfigurationOutcome(
            configuration=configuration, outcome=outcome, reason=reason
        )


def _key(configuration: Configuration) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(configuration.items()))
