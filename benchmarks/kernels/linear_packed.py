"""Benchmark of linear_packed beside its peers: a grid in named parts, cold, in a CUDA graph.

python benchmarks/kernels/linear_packed.py [PART ...] [--out FILE] [--share 1/2] [--tokens 1] ...

The grid is shapes x schemes x activations x tokens; a part of it has a name, and each option
replaces one of its sides. Without names all parts run, a call that several have once. `--share 1/2`
is every other weight, for one of two GPUs. Every workload is printed when it is done: microseconds,
how many times as fast as torch in bf16 ("eager"), and which part of the time of a kernel that only
reads the weight. The compilers of the peers run before, on all cores.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import grid

from tercet.harness.sandbox.try_run import Failure, try_run
from tercet.kernel.contract import Workload
from tercet.ops.linear_packed import baselines
from tercet.ops.linear_packed.cases import inputs
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.peers import humming as peer_humming

# (N, K): Llama 3 8B o, gate, down, 70B gate, down
PLAIN = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (8192, 28672))
# 8B q|k|v, gate|up; 70B q|k|v, gate|up
FUSED = ((6144, 4096), (28672, 4096), (10240, 8192), (57344, 8192))
SHAPES = (*PLAIN, *FUSED)
ENDS = ((4096, 4096), (28672, 8192))
# what x is: 16-bit floats; codes that an op before has made; floats that are quantized inside
ACTIVATIONS = {
    "none": {},
    "int8-codes": {"activation": "int8", "codes": True},
    "int8": {"activation": "int8"},
    "fp8-codes": {"activation": "fp8_e4m3", "codes": True},
    "fp8": {"activation": "fp8_e4m3"},
}
FEW, MANY = (1, 2, 4, 8, 16, 32, 64), (256, 512, 1024, 4096, 8192)
SOME = (1, 8, 16, 64, 256, 1024, 4096)
# From so many tokens on the GPU may be at its limit of power, and each is timed alone, after it has
# run for so long.
MANY_TOKENS, SETTLE_SECONDS = 256, 0.15
PEERS = ("eager", "uncompressed", "fp8", "humming", "read only")
FLOAT_PEERS = ("eager", "uncompressed", "humming", "read only")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the grid, and whom to time there.

    Attributes:
        tokens, shapes, schemes, activations: the sides; shapes are (N, K).
        peers: baselines of the op.
        beside: whether all implementations that may run are timed beside the one that selection
            takes.
    """

    tokens: Sequence[int]
    shapes: Sequence[tuple[int, int]] = SHAPES
    schemes: Sequence[str] = ("ternary-channel",)
    activations: Sequence[str] = ("int8-codes",)
    peers: Sequence[str] = PEERS
    beside: bool = False

    def workloads(self) -> Iterator[Workload]:
        """All calls: those that share a weight follow one another."""
        for scheme, (n, k), name, m in product(
            self.schemes, self.shapes, self.activations, self.tokens
        ):
            yield Workload(
                name=f"{scheme} {name} {n}x{k} M={m}",
                sizes={"M": m, "N": n, "K": k},
                options={"scheme": scheme, **ACTIVATIONS[name]},
            )


PARTS = {
    # GemLite tunes for up to a minute at each call that its tables lack
    "gemlite": Part(
        tokens=(1, 16),
        shapes=ENDS,
        activations=("none",),
        peers=(*FLOAT_PEERS, "gemlite"),
        beside=True,
    ),
    # all that may run, so that what selection takes can be compared with the rest
    "choice": Part(
        tokens=(1, 16, 64, 1024),
        shapes=ENDS,
        schemes=("ternary-channel", "nonary-channel"),
        activations=("none", "int8-codes"),
        beside=True,
    ),
    "decode": Part(tokens=FEW),
    "prefill": Part(tokens=MANY),
    "decode-a16": Part(tokens=(1, 8, 16, 64), activations=("none",), peers=FLOAT_PEERS),
    "prefill-a16": Part(tokens=MANY, shapes=PLAIN, activations=("none",), peers=FLOAT_PEERS),
    "inside": Part(tokens=(1,), activations=("int8",), peers=FLOAT_PEERS),
    "inside-many": Part(
        tokens=(16, 64, 1024), shapes=ENDS, activations=("int8",), peers=FLOAT_PEERS
    ),
    "fp8-x": Part(tokens=(1, 16, 64, 1024), shapes=ENDS, activations=("fp8-codes", "fp8")),
    "4-bits": Part(tokens=(1, 4096), schemes=("nonary-channel",)),
    "int4": Part(tokens=(1, 4096), shapes=PLAIN, schemes=("int4-channel",)),
    "4-bits-a16": Part(
        tokens=(1, 16, 64, 256, 1024, 4096),
        shapes=PLAIN,
        schemes=("nonary-channel",),
        activations=("none",),
        peers=FLOAT_PEERS,
    ),
    "groups": Part(
        tokens=(1, 8, 64, 1024, 4096), shapes=PLAIN, schemes=("ternary-g128", "int4-g128")
    ),
    "groups-a16": Part(
        tokens=(1, 16, 1024),
        shapes=ENDS,
        schemes=("ternary-g128", "int4-g128"),
        activations=("none",),
        peers=FLOAT_PEERS,
    ),
    "int8": Part(tokens=SOME, shapes=PLAIN, schemes=("int8-channel",)),
    "fp8": Part(
        tokens=SOME, shapes=PLAIN, schemes=("fp8_e4m3-channel",), activations=("fp8-codes",)
    ),
    "fp8-a16": Part(
        tokens=(1, 16, 64, 1024),
        shapes=ENDS,
        schemes=("fp8_e4m3-channel",),
        activations=("none",),
        peers=FLOAT_PEERS,
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
            made = try_run(
                lambda workload=workload: baselines.prepare_humming(inputs(workload, 0, device))
            )
            if isinstance(made, Failure):
                refused.add(made.reason)
                continue
            layers[key] = made["layer"]
        calls.append((layers[key], peer_humming.configuration(layers[key], workload.sizes["M"])))
    compiled = try_run(lambda: peer_humming.compile_ahead(calls))
    words = compiled.reason if isinstance(compiled, Failure) else f"{compiled} kernels compiled"
    return "; ".join((f"humming: {words}", *sorted(refused)))


def calls_of(
    parts: Sequence[Part], share: tuple[int, int] = (1, 1)
) -> list[tuple[Part, list[Workload]]]:
    """Each part with its calls, none of which an earlier part has; of all weights a share's."""
    known, weights = set[str](), dict[str, int]()
    found = list[tuple[Part, list[Workload]]]()
    for part in parts:
        mine = list[Workload]()
        for workload in part.workloads():
            weight = workload.name.rpartition(" ")[0]
            number = weights.setdefault(weight, len(weights))
            if workload.name not in known and number % share[1] == share[0] - 1:
                mine.append(workload)
            known.add(workload.name)
        found.append((part, mine))
    return found


def chosen(workload: Workload, device: str) -> list[str]:
    """The implementation that selection takes for this call."""
    context = OP.context(workload, device)
    able = (each.name for each in OP.implementations if each.requirement.unmet(context) is None)
    return list(islice(able, 1))


def run(parts: Sequence[Part], options: argparse.Namespace) -> bool:
    """Times these parts; whether nothing was wrong and all of it ran."""
    start, good = time.monotonic(), True
    todo = calls_of(parts, options.share)
    if options.device == "cuda":
        beside = [call for part, calls in todo if "humming" in part.peers for call in calls]
        words = compile_ahead(beside, options.device)
        print(words, f"{time.monotonic() - start:.0f} s", flush=True)
    for part, calls in todo:
        for names, many, some in _alike(part, calls, options):
            good &= grid.run(
                OP,
                some,
                implementations=names,
                baselines=[name for name in part.peers if not many or name != "read only"],
                options=options,
                start=start,
                settle_seconds=SETTLE_SECONDS if many else 0.0,
            )
    print(f"{sum(len(calls) for _, calls in todo)} workloads, {time.monotonic() - start:.0f} s")
    return good


def _alike(
    part: Part, calls: Sequence[Workload], options: argparse.Namespace
) -> list[tuple[list[str] | None, bool, list[Workload]]]:
    """Calls that are timed alike, together: with which implementations, whether of many tokens."""
    found: dict[tuple[tuple[str, ...], bool], list[Workload]] = {}
    for call in calls:
        all_or_given = part.beside or options.implementation
        names = options.implementation or [] if all_or_given else chosen(call, options.device)
        many = call.sizes["M"] >= MANY_TOKENS
        found.setdefault((tuple(names), many), []).append(call)
    return [(list(names) or None, many, some) for (names, many), some in found.items()]


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    return int(rows), int(columns)


def _share(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise argparse.ArgumentTypeError(f"{text!r}: write I/N, with I from 1 to N")
    return int(number), int(count)


def parsed(arguments: Sequence[str]) -> tuple[list[Part], argparse.Namespace]:
    """The parts with what was replaced, and the rest of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--share", type=_share, default=(1, 1), help="I/N: part I of N of all")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--shape", type=_shape, action="append", help="NxK")
    parser.add_argument("--scheme", action="append")
    parser.add_argument("--activation", choices=ACTIVATIONS, action="append")
    parser.add_argument("--baseline", action="append")
    grid.add_arguments(parser)
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(PARTS)}")
    parts = [
        replace(
            part,
            tokens=options.tokens or part.tokens,
            shapes=options.shape or part.shapes,
            schemes=options.scheme or part.schemes,
            activations=options.activation or part.activations,
            peers=options.baseline or part.peers,
        )
        for part in (PARTS[name] for name in options.part or PARTS)
    ]
    return parts, options


if __name__ == "__main__":
    sys.exit(not run(*parsed(sys.argv[1:])))
