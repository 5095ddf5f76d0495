"""Runs the whole check on every right kernel and every own implementation with twenty seeds.

`python tests/planted/twenty_seeds.py [RECORDS.jsonl [OP ...]]` appends one record for each of them,
of kind "check": how many runs there were and how many were red; a red one has its reason instead.
With names of ops after the path, only these are run. All take about an hour on two cores; the tests
run a part of it.
"""

import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from planted.catalog import RIGHT, planted

from tercet.errors import unknown_name
from tercet.harness.isolate import Worker
from tercet.kernel.select import find, names
from tercet.kernel.tuned import device_name
from tercet.records import Environment, Outcome, Record, append
from tercet.records.record import Setting

SEEDS = 20
RECORDS = Path(__file__).parents[2] / "benchmarks" / "planted"
_SECONDS = 600.0


def main() -> None:
    """Runs everything, or the ops that are named, and prints a line for each."""
    known, wanted = names(), sys.argv[2:]
    for name in wanted:
        if name not in known:
            sys.exit(unknown_name("op", name, known))
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDS / f"{device_name()}.jsonl"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    here = Environment.here(torch.cuda.get_device_name() if device == "cuda" else None)
    with Worker(device=device, seconds=_SECONDS, paths=(str(Path(__file__).parents[1]),)) as worker:
        for op, name, function, arguments in _runs(device, wanted or known):
            reds = list[str]()
            for _ in range(SEEDS):
                seed = secrets.randbelow(2**31)
                red = worker.call(function, device=device, seed=seed, part=None, **arguments)
                reds += [f"seed {seed}: {check}: {why}" for check, why in red.items()]
            settings: dict[str, Setting] = {"implementation": name, "device": device}
            record = Record(
                kind="check",
                subject=op,
                settings=settings,
                metrics={} if reds else {"runs": SEEDS, "red": 0},
                outcome=Outcome.WRONG if reds else Outcome.OK,
                reason="; ".join(reds)[:2000] or None,
                environment=here,
            )
            append(path, [record])
            print(f"{op} {name}: {reds[0] if reds else 'green'}", flush=True)


def _runs(device: str, ops: Sequence[str]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """op, implementation, the judging function and its arguments."""
    for right in planted(RIGHT):
        if right.op in ops:
            arguments = {"path": str(right.path)}
            yield right.op, right.name, "planted.judging:red_of_right", arguments
    for op in map(find, ops):
        for one in op.implementations:
            interpreted = device == "cpu" and one.language == "triton"
            if not one.requirement.devices or device in one.requirement.devices or interpreted:
                arguments = {"op": op.name, "implementation": one.name}
                yield op.name, one.name, "planted.judging:red_of_own", arguments


if __name__ == "__main__":
    main()
