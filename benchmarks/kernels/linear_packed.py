"""Benchmark of linear_packed beside its peers: named parts of one grid, cold, in a CUDA graph.

python benchmarks/kernels/linear_packed.py decode [--out FILE] [--tokens 1 --tokens 16] ...

The grid is shapes x schemes x activations x tokens; a regime names a part of it, and each option
replaces one of its sides. Every workload is printed when it is done: microseconds, how many times
as fast as torch in bf16 ("eager"), and which part of the time of a kernel that only reads the
weight. The compilers of the peers run before, on all cores.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from tercet.harness.attempt import Failure, attempt
from tercet.harness.bench import bench
from tercet.kernel import peer_humming
from tercet.kernel.contract import Workload
from tercet.ops.linear_packed import baselines
from tercet.ops.linear_packed.cases import inputs
from tercet.ops.linear_packed.op import OP
from tercet.records import Outcome, Record, append

# (N, K): Llama 3 8B o, gate, down, q|k|v, gate|up; 70B gate, down, q|k|v, gate|up
SHAPES = (
    (4096, 4096),
    (14336, 4096),
    (4096, 14336),
    (6144, 4096),
    (28672, 4096),
    (28672, 8192),
    (8192, 28672),
    (10240, 8192),
    (57344, 8192),
)
SCHEMES = (
    "ternary-channel",
    "ternary-g128",
    "nonary-channel",
    "int4-g128",
    "int8-channel",
    "fp8_e4m3-channel",
)
# what x is: 16-bit floats; codes that an op before has made; floats that are quantized inside
ACTIVATIONS = {
    "none": {},
    "int8-codes": {"activation": "int8", "codes": True},
    "int8": {"activation": "int8"},
    "fp8-codes": {"activation": "fp8_e4m3", "codes": True},
    "fp8": {"activation": "fp8_e4m3"},
}
FEW, MANY = (1, 2, 4, 8, 16, 32, 64), (256, 1024, 4096, 8192)
PEERS = ("eager", "fp8", "humming", "read only")


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A part of the grid, and whom to time there."""

    tokens: Sequence[int]
    shapes: Sequence[tuple[int, int]] = SHAPES
    schemes: Sequence[str] = ("ternary-channel",)
    activations: Sequence[str] = ("int8-codes",)
    peers: Sequence[str] = PEERS

    def workloads(self) -> Iterator[Workload]:
        """All calls: those that share a weight follow one another."""
        for (n, k), scheme, name, m in product(
            self.shapes, self.schemes, self.activations, self.tokens
        ):
            yield Workload(
                name=f"{scheme} {name} {n}x{k} M={m}",
                sizes={"M": m, "N": n, "K": k},
                options={"scheme": scheme, **ACTIVATIONS[name]},
            )


REGIMES = {
    "decode": Regime(tokens=FEW),
    "decode-a16": Regime(
        tokens=FEW, activations=("none",), peers=("eager", "humming", "read only")
    ),
    "prefill": Regime(tokens=MANY),
    "prefill-a16": Regime(tokens=MANY, activations=("none",), peers=("eager", "humming")),
    "schemes": Regime(
        tokens=(1, 16, 1024),
        shapes=((4096, 4096), (28672, 8192)),
        schemes=SCHEMES,
        activations=("none", "int8-codes"),
    ),
    "activations": Regime(
        tokens=(1, 16, 64, 1024),
        shapes=((4096, 4096), (28672, 8192)),
        activations=tuple(ACTIVATIONS),
    ),
    # tunes for up to a minute at each call that its tables lack
    "gemlite": Regime(
        tokens=(1, 16),
        shapes=((4096, 4096), (28672, 4096)),
        activations=("none", "int8"),
        peers=("eager", "gemlite", "read only"),
    ),
}


def compile_ahead(workloads: Sequence[Workload], device: str) -> str:
    """Compiles what Humming needs for these calls; what was done, in words."""
    layers: dict[tuple[str, ...], object] = {}
    calls = list[tuple[object, str]]()
    refused = set[str]()
    for workload in workloads:
        key = tuple(str(part) for part in (*list(workload.sizes.items())[1:], workload.options))
        if key not in layers:
            made = attempt(
                lambda workload=workload: baselines.prepare_humming(inputs(workload, 0, device))
            )
            if isinstance(made, Failure):
                refused.add(made.reason)
                continue
            layers[key] = made["layer"]
        calls.append((layers[key], peer_humming.configuration(layers[key], workload.sizes["M"])))
    compiled = attempt(lambda: peer_humming.compile_ahead(calls))
    words = compiled.reason if isinstance(compiled, Failure) else f"{compiled} kernels compiled"
    return "; ".join((f"humming: {words}", *sorted(refused)))


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


def run(regime: Regime, options: argparse.Namespace) -> bool:
    """Times a regime; whether nothing was wrong and all of it ran."""
    start, workloads = time.monotonic(), tuple(regime.workloads())
    if "humming" in regime.peers and options.device == "cuda":
        print(compile_ahead(workloads, options.device), f"{time.monotonic() - start:.0f} s")
    good = True
    for at, workload in enumerate(workloads):
        if time.monotonic() - start > options.limit:
            print(f"stopped after {options.limit:.0f} s: {len(workloads) - at} workloads not run")
            return False
        report = bench(
            OP,
            (workload,),
            implementations=options.implementation,
            baselines=regime.peers,
            directions=("forward",),
            caches=("cold",),
            launches=("graph",) if options.device == "cuda" else ("eager",),
            device=options.device,
            seconds_per_row=options.seconds,
        )
        if options.out is not None:
            append(options.out, report.records)
        print(f"{workload.name}: {line(report.records)}", flush=True)
        for fault in report.faults[:2]:
            print(f"  WRONG {fault.implementation} {fault.check}: {fault.message[:300]}")
        good = good and report.passed
    print(f"{len(workloads)} workloads in {time.monotonic() - start:.0f} s")
    return good


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    return int(rows), int(columns)


def parsed(arguments: Sequence[str]) -> tuple[Regime, argparse.Namespace]:
    """The regime with what was replaced, and the rest of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("regime", choices=REGIMES)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--shape", type=_shape, action="append", help="NxK")
    parser.add_argument("--scheme", action="append")
    parser.add_argument("--activation", choices=ACTIVATIONS, action="append")
    parser.add_argument("--baseline", action="append")
    parser.add_argument("--implementation", action="append", help="default: all that may run")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each row, at most")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds for all of it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    named = REGIMES[options.regime]
    regime = Regime(
        tokens=options.tokens or named.tokens,
        shapes=options.shape or named.shapes,
        schemes=options.scheme or named.schemes,
        activations=options.activation or named.activations,
        peers=options.baseline or named.peers,
    )
    return regime, options


if __name__ == "__main__":
    sys.exit(not run(*parsed(sys.argv[1:])))
