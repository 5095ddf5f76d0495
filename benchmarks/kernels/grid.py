"""A run of `bench` over many calls of an op beside its peers, cold, in a CUDA graph.

What linear_packed.py and grouped_linear_packed.py share: the command line's common part, the limit
of time, and a line for each workload when it is done.
"""

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tercet.harness.bench.run import bench
from tercet.kernel.contract import Op, Workload
from tercet.records import Outcome, Record, append


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every grid has."""
    parser.add_argument("--implementation", action="append", help="default: all that may run")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each row, at most")
    parser.add_argument("--settle", type=float, help="time each alone, after so many seconds of it")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds for all of it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")


def line(records: Sequence[Record]) -> str:
    """A workload's times, fastest first, and why others have none."""
    timed = [record for record in records if record.outcome is Outcome.OK]
    by_name = {record.settings["variant"]: record.metrics["time_us"] for record in timed}
    eager, floor = by_name.get("eager"), by_name.get("read only")
    parts = list[str]()
    for record in sorted(timed, key=lambda record: record.metrics["time_us"]):
        us = record.metrics["time_us"]
        words = [f"{record.settings['variant']} {us:.2f}"]
        if eager and record.settings["variant"] != "eager":
            words.append(f"{eager / us:.2f}x")
        if floor and record.settings["variant"] != "read only":
            words.append(f"{floor / us:.0%}")
        if "relative_error" in record.metrics:
            words.append(f"err {record.metrics['relative_error']:.1e}")
        parts.append(" ".join(words))
    parts += [
        f"{record.settings['variant']} {record.outcome.upper()} {str(record.reason)[:100]}"
        for record in records
        if record.outcome is not Outcome.OK
    ]
    return " | ".join(parts)


def run(
    op: Op,
    calls: Sequence[Workload],
    *,
    implementations: Sequence[str] | None,
    baselines: Sequence[str],
    options: argparse.Namespace,
    start: float,
    settle_seconds: float = 0.0,
) -> bool:
    """Times all calls, which stand on one copy bandwidth, and prints each when it is done.

    Args:
        op, calls: what.
        implementations: names; None for all that may run.
        baselines: beside them.
        options: seconds, settle, limit, device and out of the command line.
        start: when the limit began, by `time.monotonic`.
        settle_seconds: as in `bench`, where the command line says nothing.

    Returns:
        Whether nothing was wrong and all of it ran.
    """
    done = list[str]()
    # what is imported stays: bench looks for garbage several times a workload
    gc.collect()
    gc.freeze()

    def before_limit() -> Iterator[Workload]:
        for at, workload in enumerate(calls):
            if time.monotonic() - start > options.limit:
                print(f"stopped after {options.limit:.0f} s: {len(calls) - at} workloads not run")
                return
            done.append(workload.name)
            yield workload

    def keep(records: Sequence[Record]) -> None:
        if options.out is not None:
            append(options.out, records)
        print(f"{done[-1]}: {line(records)} [{time.monotonic() - start:.0f} s]", flush=True)

    report = bench(
        op,
        before_limit(),
        implementations=implementations,
        baselines=baselines,
        directions=("forward",),
        caches=("cold",),
        launches=("graph",) if options.device == "cuda" else ("eager",),
        device=options.device,
        seconds_per_row=options.seconds,
        settle_seconds=settle_seconds if options.settle is None else options.settle,
        keep=keep,
    )
    print(f"copy bandwidth {report.ceilings.copy_bytes_per_second / 1e12:.3f} TB/s")
    for fault in report.faults:
        print(f"WRONG {fault.implementation} {fault.check} {fault.case}: {fault.message[:300]}")
    return report.passed and len(done) == len(calls)
