"""Benchmark of grouped_linear_packed beside its peers, cold, in a CUDA graph.

python benchmarks/kernels/grouped_linear_packed.py [--out FILE] [--tokens 1 --tokens 16] ...

The two products of the experts of models in the catalog, x as int8 codes or in bfloat16, without
row weights, which Humming has none of. Every workload is printed when it is done, as
linear_packed.py does it. What Humming compiles is compiled before, on all cores.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import grid
import torch
from linear_packed import ACTIVATIONS

from tercet.harness.sandbox.try_run import Failure, try_run
from tercet.kernel.contract import Workload
from tercet.models.catalog import load
from tercet.ops.grouped_linear_packed import baselines
from tercet.ops.grouped_linear_packed.cases import inputs
from tercet.ops.grouped_linear_packed.op import OP
from tercet.packed_weight.peers import humming as peer_humming

PEERS = ("eager", "loop over experts", "humming", "read only")
TOKENS = (1, 4, 16, 64, 128, 256, 512)


def workloads(options: argparse.Namespace) -> list[Workload]:
    """The calls; those of one model follow one another."""
    return [
        _call(workload, part, tokens, activation)
        for name in options.model
        for part in options.part
        for workload in _one_of(name, part)
        for activation in options.activation
        for tokens in options.tokens
    ]


def _one_of(model: str, part: str) -> tuple[Workload, ...]:
    """The model's call of this product, at whatever tokens."""
    found = OP.shapes(load(model)) if OP.shapes is not None else ()
    return tuple(workload for workload in found if f" {part} " in workload.name)[:1]


def _call(workload: Workload, part: str, tokens: int, activation: str) -> Workload:
    model, _, _ = workload.name.partition(" ")
    top_k = workload.options["top_k"]
    return replace(
        workload,
        name=f"{model} experts {part} {tokens} tokens {activation}",
        sizes=workload.sizes | {"T": tokens * top_k},
        dtype=torch.bfloat16,
        options={"scheme": "ternary-channel", "top_k": top_k, "row_weight": False}
        | ACTIVATIONS[activation],
    )


def compile_ahead(calls: Sequence[Workload], device: str) -> str:
    """Compiles what Humming needs for these calls; what was done, in words.

    Calls of equal weights share a layer: kernels differ by the number of rows alone.
    """

    def wanted() -> Iterator[tuple[object, str]]:
        last, layer = None, None
        for workload in calls:
            kind = {**workload.sizes, **workload.options, "T": 0}
            if kind != last:
                layer = baselines.prepare_humming(inputs(workload, 0, device))["layer"]
            last = kind
            rows = workload.sizes["T"]
            yield layer, peer_humming.configuration(layer, rows, **baselines.GROUPED)

    compiled = try_run(lambda: peer_humming.compile_ahead(wanted(), **baselines.GROUPED))
    return f"humming: {compiled.reason if isinstance(compiled, Failure) else compiled}"


def run(options: argparse.Namespace) -> bool:
    """Times all; whether nothing was wrong and all of it ran."""
    start, calls = time.monotonic(), workloads(options)
    print(len(calls), "workloads")
    if options.device == "cuda" and "humming" in options.peer:
        print(compile_ahead(calls, options.device), f"{time.monotonic() - start:.0f} s", flush=True)
    return grid.run(
        OP,
        calls,
        implementations=options.implementation,
        baselines=options.peer,
        options=options,
        start=start,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--part", choices=("gate|up", "down"), action="append")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--activation", choices=ACTIVATIONS, action="append")
    parser.add_argument("--peer", choices=PEERS, action="append")
    grid.add_arguments(parser)
    given = parser.parse_args()
    given.model = given.model or ["qwen3-30b-a3b", "deepseek-v3"]
    given.part = given.part or ["gate|up", "down"]
    given.tokens = given.tokens or list(TOKENS)
    given.activation = given.activation or ["int8-codes"]
    given.peer = given.peer or list(PEERS)
    sys.exit(not run(given))
