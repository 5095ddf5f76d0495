"""Runs the whole check on every right kernel and every own implementation with twenty seeds.

    python tests/planted/twenty_seeds.py [--device cpu] [--records FILE] [--processes N] [OP ...]

appends one record for each of them, of kind "check": how many runs there were and how many were
red; a red one has its reason instead. With names of ops, only these are run. All take about two
hours of one core; --processes spreads the seeds. The tests run a part of it.
"""

import argparse
import secrets
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from planted.catalog import RIGHT, find_op, op_names, planted

from tercet.child_process import ChildError
from tercet.harness.sandbox.isolate import Worker
from tercet.kernel.tuned import device_name
from tercet.records import Environment, Outcome, Record, append

SEEDS = 20
RECORDS = Path(__file__).parents[2] / "benchmarks" / "planted"
_SECONDS = 1200.0
_TESTS = str(Path(__file__).parents[1])

Run = tuple[str, str, str, dict[str, Any]]


def main() -> None:
    """Runs everything, or the ops that are named, and prints a line for each."""
    given = _arguments()
    cuda = given.device == "cuda"
    path = given.records or RECORDS / f"{device_name() if cuda else 'cpu'}.jsonl"
    here = Environment.here(torch.cuda.get_device_name() if cuda else None)
    free = SimpleQueue[Worker | None]()
    for _ in range(given.processes):
        free.put(None)
    with ThreadPoolExecutor(given.processes) as pool:
        everything = list(runs(given.device, given.ops or op_names()))
        reds = [
            [pool.submit(partial(_red, given.device, free), run) for _ in range(SEEDS)]
            for run in everything
        ]
        for (op, name, *_), found in zip(everything, reds, strict=True):
            red = [why for future in found for why in future.result()]
            record = Record(
                kind="check",
                subject=op,
                settings={"implementation": name, "device": given.device},
                metrics={} if red else {"runs": SEEDS, "red": 0},
                outcome=Outcome.WRONG if red else Outcome.OK,
                reason="; ".join(red)[:2000] or None,
                environment=here,
            )
            append(path, [record])
            print(f"{op} {name}: {red[0] if red else 'green'}", flush=True)
    while not free.empty():
        if worker := free.get():
            worker.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("ops", nargs="*", metavar="OP")
    return parser.parse_args()


def _red(device: str, free: SimpleQueue[Worker | None], run: Run) -> list[str]:
    """What one seed flags, in a worker that is free (None: one that is still to start)."""
    _, _, function, arguments = run
    seed = secrets.randbelow(2**31)
    worker = free.get() or Worker(device=device, seconds=_SECONDS, paths=(_TESTS,))
    try:
        red = worker.call(function, device=device, seed=seed, part=None, **arguments)
    except ChildError as error:
        worker.close()
        free.put(None)
        return [f"seed {seed}: {error.kind}: {error}"]
    free.put(worker)
    return [f"seed {seed}: {check}: {why}" for check, why in red.items()]


def runs(device: str, ops: Sequence[str]) -> Iterator[Run]:
    """What is run on a device (cpu or cuda): op, implementation, judging function, arguments."""
    for right in planted(RIGHT):
        if right.op in ops:
            arguments = {"path": str(right.path)}
            yield right.op, right.name, "planted.judging:red_of_right", arguments
    for op in map(find_op, ops):
        for one in op.implementations:
            interpreted = device == "cpu" and one.language == "triton"
            if not one.requirement.devices or device in one.requirement.devices or interpreted:
                arguments = {"op": op.name, "implementation": one.name}
                yield op.name, one.name, "planted.judging:red_of_own", arguments


if __name__ == "__main__":
    main()
