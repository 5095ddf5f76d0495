"""Allocation by latency at a published model's shape: what was predicted, and what was timed.

python benchmarks/compress/latency.py MODEL [--formats F,F] [--head F] [--layers L]
    [--shares 0.1,0.3,0.6] [--out FILE]

Weights are drawn, as `tercet allocate --latency` draws them, so any shape can be timed; what each
format costs in quality is drawn, too: plans mix formats as a real model's do. Limits lie between
the fastest and the slowest choice, at these shares of the way. A record a limit.
"""

import argparse
import random
import sys
import tempfile
import time
from math import prod
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "decoder"))

from speed import DrawnSource

from tercet.checkpoints.packed.layout import SourceInfo
from tercet.compress.allocate.latency import LatencyLimit, formats_of, load_latencies
from tercet.compress.allocate.sensitivity_file import Identity, Measured, Module, Sensitivity
from tercet.models.catalog.load import read
from tercet.records import Environment, Record, append
from tercet.workflows.allocation.latency import Timed, allocate_latency

FORMATS = ("ternary-g64", "int3-g64", "nonary-g64", "int4-g64")
_HALVED = 0.4  # of the harm, from each format to the next


def drawn_sensitivity(source: DrawnSource, formats: tuple[str, ...], head: str) -> Sensitivity:
    """The source's modules; linears of layers in any of the formats, drawn harm of each."""
    generator = random.Random(0)
    modules = {
        name: Module(unit=0, shape=one.shape, formats=formats if ".layers." in name else (head,))
        for name, one in source.modules.items()
    }
    kept = {name: ("bfloat16", tuple(source.tensor(name).shape)) for name in source.names()}
    identity = Identity.model_construct(
        source=SourceInfo(reference="drawn", sha256="0" * 64, size_bytes=0, parameters=0),
        in_context=False, divergences=None, layers_name="model.layers", kept=(kept,),
        modules=modules, plan={},
    )  # fmt: skip
    weights = sum(prod(one.shape) for one in modules.values())
    lines = dict[tuple[str, str], Measured]()
    for name, one in modules.items():
        harm = prod(one.shape) / weights * 10 ** generator.uniform(-1, 1)
        for form in one.formats:
            lines[name, form] = Measured(module=name, format=form, kl_nats=harm, proxy_nats=None)
            harm *= _HALVED
    return Sensitivity(identity=identity, context_kl_nats=0.0, lines=lines)


def main() -> None:
    """Measures, and appends records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--head", default="int8")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--shares", default="0.1,0.3,0.6")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    entry = read(given.model)
    layers = given.layers or entry.num_hidden_layers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    formats = tuple(given.formats.split(","))
    source = DrawnSource(entry, layers, formats[0], given.head, None, device)
    sensitivity = drawn_sensitivity(source, formats, given.head)

    def allocate(us: float, kept: Path) -> Timed:
        limit = LatencyLimit(us=us, device=None)
        return allocate_latency(sensitivity, limit, kept, lambda: source.config)

    with tempfile.TemporaryDirectory() as folder:
        kept, begin = Path(folder) / "latencies.json", time.monotonic()
        slowest = allocate(1e12, kept)
        seconds = time.monotonic() - begin
        known = load_latencies(kept, sensitivity)
        print(known.model_dump_json(exclude={"groups", "base"}))
        modules = sensitivity.identity.modules
        fastest = known.base_us + sum(
            min(known.added(group, form) for form in formats_of(group, modules))
            for group in known.groups
        )
        for share in map(float, given.shares.split(",")):
            limit = fastest + share * (slowest.predicted_us - fastest)
            begin = time.monotonic()
            found = allocate(limit, kept)
            record = Record(
                kind="latency",
                subject=given.model,
                settings={
                    "formats": given.formats, "head": given.head, "layers": layers,
                    "context": known.context, "share": share,
                },
                metrics={
                    "limit_us": limit,
                    "predicted_us": found.predicted_us,
                    "measured_us": found.measured_us or 0.0,
                    "bits_per_weight": found.allocation.size.bits_per_weight,
                    "formats_used": float(len(found.allocation.counts(sensitivity))),
                    "timing_seconds": seconds,
                    "allocation_seconds": time.monotonic() - begin,
                },
                environment=Environment.here(known.device if device == "cuda" else None),
            )  # fmt: skip
            print(record.metrics, found.allocation.counts(sensitivity), flush=True)
            if given.out is not None:
                append(given.out, [record])


if __name__ == "__main__":
    main()
