"""Bench row: one timing as a record."""

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from tercet.harness.bench.variant import Cache, Launch
from tercet.harness.timing.ceilings import Ceilings
from tercet.harness.timing.roofline import roofline
from tercet.harness.timing.statistics import Interval
from tercet.kernel.contract import Cost, Op, Workload
from tercet.kernel.tuned import Direction
from tercet.records import Environment, Outcome, Record
from tercet.records.record import Setting

_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """Which timing a record is of: of a variant, in a direction, with this cache and launch.

    Cache and launch are None for a variant that could not be timed in any of them. `settled` says
    that each variant was timed by itself, at a clock of its own; its record has the setting "pace".
    """

    op: Op
    workload: Workload
    variant: str
    direction: Direction
    cache: Cache | None = None
    launch: Launch | None = None
    settled: bool = False

    def timed(
        self,
        interval: Interval,
        cost: Cost,
        ceilings: Ceilings,
        *,
        peak_bytes: int | None,
        state: dict[str, float],
    ) -> Record:
        """The record of a time that counts."""
        floor = roofline(cost, ceilings, self.workload.dtype)
        seconds = interval.median / 1e6
        metrics = {
            "time_us": interval.median,
            "time_us_low": interval.low,
            "time_us_high": interval.high,
            "repeats": float(interval.count),
            "flops": float(cost.flops),
            "bytes": float(cost.bytes),
            "bytes_per_second": cost.bytes / seconds,
            "flops_per_second": cost.flops / seconds,
            "floor_us": floor.floor_us,
            "roofline_fraction": floor.fraction(interval.median),
            **state,
        }
        if peak_bytes is not None:
            metrics["peak_memory_bytes"] = float(peak_bytes)
        return Record(
            kind="bench",
            subject=self.op.name,
            settings={**self._settings(), "binds": floor.binds},
            metrics=metrics,
            environment=here(),
        )

    def refused(self, outcome: Outcome, reason: str) -> Record:
        """The record of what was not timed, or whose time does not count."""
        return Record(
            kind="bench",
            subject=self.op.name,
            settings=self._settings(),
            outcome=outcome,
            reason=reason,
            environment=here(),
        )

    def _settings(self) -> dict[str, Setting]:
        workload = self.workload
        return {
            "variant": self.variant,
            "direction": self.direction,
            "workload": workload.name,
            "sizes": " ".join(f"{axis}={size}" for axis, size in workload.sizes.items()),
            "dtype": str(workload.dtype)[6:],
            "options": " ".join(f"{name}={value}" for name, value in workload.options.items()),
            "cache": self.cache,
            "launch": self.launch,
            **({"pace": "alone"} if self.settled else {}),
            "revision": revision(),
        }


@cache
def here() -> Environment:
    """This process's environment, with the GPU's name."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return Environment.here(accelerator=gpu)


@cache
def revision() -> str | None:
    """The commit that this package runs from, "-dirty" where files differ from it; None outside."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
