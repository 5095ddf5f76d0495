"""Benchmark of grouped_linear_packed beside its peers, cold, in a CUDA graph.

python benchmarks/kernels/grouped_linear_packed.py [--out FILE] [--tokens 1 --tokens 16] ...

The gate|up products of the experts of models in the catalog, x as int8 codes and in bfloat16. Every
workload is printed when it is done, as linear_packed.py does it. What Humming compiles is compiled
before, on all cores.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from linear_packed import ACTIVATIONS, line

from tercet.harness.attempt import Failure, attempt
from tercet.harness.bench import bench
from tercet.kernel import peer_humming
from tercet.kernel.contract import Workload
from tercet.models.catalog import load
from tercet.ops.grouped_linear_packed import baselines
from tercet.ops.grouped_linear_packed.cases import inputs
from tercet.ops.grouped_linear_packed.op import OP
from tercet.records import append

PEERS = ("eager", "humming", "read only")


def workloads(options: argparse.Namespace) -> list[Workload]:
    """The calls; those of one model follow one another."""
    found = list[Workload]()
    for name in options.model:
        shapes = OP.shapes(load(name)) if OP.shapes is not None else ()
        for workload in shapes:
            tokens = workload.sizes["T"] // workload.options["top_k"]
            if "gate|up" not in workload.name or tokens not in options.tokens:
                continue
            for activation in options.activation:
                found.append(
                    replace(
                        workload,
                        name=f"{workload.name} {activation}",
                        dtype=torch.bfloat16,
                        options=workload.options
                        | {"scheme": "ternary-channel"}
                        | ACTIVATIONS[activation],
                    )
                )
    return found


def compile_ahead(calls: Sequence[Workload], device: str) -> str:
    """Compiles what Humming needs for these calls; what was done, in words.

    Weights of a few experts stand for those of all: kernels are the same.
    """
    wanted = list[tuple[object, str]]()
    for workload in calls:
        made = attempt(
            lambda workload=workload: baselines.prepare_humming(inputs(workload, 0, device))
        )
        if isinstance(made, Failure):
            return f"humming: {made.reason}"
        wanted.append((made["layer"], made["configuration"]))
    compiled = attempt(lambda: peer_humming.compile_ahead(wanted))
    return f"humming: {compiled.reason if isinstance(compiled, Failure) else compiled}"


def run(options: argparse.Namespace) -> bool:
    """Times all; whether nothing was wrong and all of it ran."""
    start, calls = time.monotonic(), workloads(options)
    print(len(calls), "workloads")
    if options.device == "cuda":
        print(compile_ahead(calls, options.device), f"{time.monotonic() - start:.0f} s", flush=True)
    good = True
    for at, workload in enumerate(calls):
        if time.monotonic() - start > options.limit:
            print(f"stopped after {options.limit:.0f} s: {len(calls) - at} workloads not run")
            return False
        report = bench(
            OP,
            (workload,),
            implementations=options.implementation,
            baselines=PEERS,
            directions=("forward",),
            caches=("cold",),
            launches=("graph",) if options.device == "cuda" else ("eager",),
            device=options.device,
            seconds_per_row=0.05,
        )
        if options.out is not None:
            append(options.out, report.records)
        print(
            f"{workload.name}: {line(report.records)} [{time.monotonic() - start:.0f} s]",
            flush=True,
        )
        for fault in report.faults[:2]:
            print(f"  WRONG {fault.implementation} {fault.check}: {fault.message[:300]}")
        good = good and report.passed
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--activation", choices=ACTIVATIONS, action="append")
    parser.add_argument("--implementation", action="append", help="default: all that may run")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds for all of it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    given = parser.parse_args()
    given.model = given.model or ["qwen3-30b-a3b", "deepseek-v3"]
    given.tokens = given.tokens or [1, 16, 512]
    given.activation = given.activation or ["int8-codes", "none"]
    sys.exit(not run(given))
