"""Two compressions side by side against the same two one after the other, in fresh processes.

    python benchmarks/side_by_side.py [--model smollm2-135m | DIR] [--to int4] [--out FILE.jsonl]

On a machine whose cores are shared fairly, side by side takes as long as one after the other; the
goal is at most 1.2 times as long. Variables of OpenMP are passed on, so that settings can be
compared: GOMP_SPINCOUNT=300000 is libgomp's own default.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tercet
from tercet.records import Environment, Outcome, Record, append

GOAL = 1.2
VARIABLES = ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")


@dataclass(frozen=True, kw_only=True)
class Took:
    """What some processes took: seconds by the clock, and seconds of all cores."""

    wall_s: float
    cpu_s: float


def run(commands: list[list[str]]) -> Took:
    """Starts all at once, and waits for all."""
    begin = time.perf_counter()
    started = [
        subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in commands
    ]
    cpu = 0.0
    failed: list[int] = []
    for process in started:
        # not Popen.wait, which does not say what the process used
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu += used.ru_utime + used.ru_stime
        if process.returncode:
            failed.append(process.returncode)
    if failed:
        sys.exit(f"a compression ended with exit code {failed[0]}: run it alone to see why")
    return Took(wall_s=time.perf_counter() - begin, cpu_s=cpu)


def digest(directory: Path) -> str:
    """SHA-256 over names and contents of all files."""
    found = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(directory)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def measure(model: str, to: str, folder: Path) -> Record:
    """Runs all four compressions; their outputs must be the same."""
    outs = [folder / f"{number}" for number in range(4)]
    commands = [
        [sys.executable, "-m", "tercet", "compress", model, "--to", to, "--out", str(out)]
        for out in outs
    ]
    one, two = run(commands[:1]), run(commands[1:2])
    sequential = Took(wall_s=one.wall_s + two.wall_s, cpu_s=one.cpu_s + two.cpu_s)
    together = run(commands[2:])
    equal = len({digest(out) for out in outs}) == 1
    metrics = {
        "sequential_wall_s": sequential.wall_s,
        "sequential_cpu_s": sequential.cpu_s,
        "together_wall_s": together.wall_s,
        "together_cpu_s": together.cpu_s,
        "wall_ratio": together.wall_s / sequential.wall_s,
        "cpu_ratio": together.cpu_s / sequential.cpu_s,
        "goal": GOAL,
    }
    return Record(
        kind="side_by_side",
        subject=Path(model).name,
        settings={"to": to, **{name: os.environ.get(name) for name in VARIABLES}},
        metrics=metrics if equal else {},
        outcome=Outcome.OK if equal else Outcome.WRONG,
        reason=None if equal else "the four outputs are not the same",
        environment=Environment.here(),
    )


def main() -> None:
    """Measures, prints a summary, and appends the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="a directory or a fetched name")
    parser.add_argument("--to", default="int4", help="the format to compress to")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "side_by_side.jsonl")
    given = parser.parse_args()
    if not Path(given.model).exists():
        tercet.fetch(given.model)  # so that no compression downloads it
    with tempfile.TemporaryDirectory() as folder:
        record = measure(given.model, given.to, Path(folder))
    append(given.out, [record])
    if record.outcome is not Outcome.OK:
        sys.exit(f"{record.outcome}: {record.reason}")
    for name, value in record.metrics.items():
        print(f"{name:20} {value:8.2f}")


if __name__ == "__main__":
    main()
