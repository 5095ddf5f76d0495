"""A chain of decoder layers' packed products in one CUDA graph, beside kernels that only read.

python benchmarks/kernels/chain.py [--tokens 1 --tokens 8] [--layers 32] [--out FILE]

The products of each layer of Llama 3 8B: q|k|v, o, gate|up and down, ternary, one scale a row, on
int8 codes; nothing of what lies between them in a model. The codes that a product takes are the
first bytes of the result before it, so that none can start before the last has ended. Each result
of the first layers is compared with `torch`'s path before a time counts.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tercet.harness.bench.row import Row
from tercet.harness.timing.ceilings import ceilings, copy_bandwidth
from tercet.harness.timing.clock import Block, capture, timing_on
from tercet.harness.timing.interleave import interleave
from tercet.harness.timing.statistics import median_interval
from tercet.kernel.contract import Cost, Workload
from tercet.kernel.device import read_bytes
from tercet.ops.linear_packed import linear_packed, torch_path
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.call import PackedCall
from tercet.packed_weight.weight import PreparedWeight
from tercet.records import Outcome, Record, append

# (N, K): q|k|v, o, gate|up, down
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
SCHEME = "ternary-channel"
CHECKED = 8
# no row of the table of single products
SUBJECT = "linear_packed, chain"
NAME, READ, READ_ALL = "hopper_decode", "read only", "read only, one kernel"


def weights(layers: int, device: str) -> list[PreparedWeight]:
    """Random ternary weights in the layout of GPUs, all different."""
    generator = torch.Generator(device).manual_seed(0)
    made = list[PreparedWeight]()
    for rows, columns in SHAPES * layers:
        shape = (rows // 16, columns // 128, 32, 4)
        words = torch.randint(-(2**31), 2**31, (2, *shape), generator=generator, device=device)
        # two bits a code: 00, 01 or 11
        ones = words[0] & 0x55555555
        codes = (ones | ((ones & words[1]) << 1)).to(torch.int32)
        scale = torch.rand((rows // 16, 1, 16), generator=generator, device=device) * 0.01
        made.append(
            PreparedWeight(
                codes=codes,
                scale=scale.half(),
                zero=None,
                scheme=SCHEME,
                shape=(rows, columns),
                layout="fragments",
            )
        )
    return made


def chain(x: Tensor, layers: Sequence[PreparedWeight]) -> list[Tensor]:
    """All products, one after the other: x [M, 4096] int8 to the results, each [M, N] bfloat16."""
    ones, results = torch.ones(len(x), device=x.device), list[Tensor]()
    for weight in layers:
        y = linear_packed(x[:, : weight.shape[1]], weight, x_scale=ones)
        results.append(y)
        x = y.view(torch.int8)
    return results


def off(x: Tensor, layers: Sequence[PreparedWeight], results: Sequence[Tensor]) -> str | None:
    """What is wrong with the first results, each against torch's product of the one before it."""
    ones = torch.ones(len(x), device=x.device)
    for at, (weight, found) in enumerate(zip(layers, results, strict=False)):
        # sums of integers below 2^24 are exact in float32
        sums = torch_path.forward(
            PackedCall(
                x=x[:, : weight.shape[1]],
                weight=replace(weight, scale=torch.ones_like(weight.scale)),
                bias=None,
                residual=None,
                x_scale=ones,
                x_sum=None,
                activation="int8",
                out_dtype=torch.float32,
            )
        )
        expected = (sums * weight.scale.float().view(-1)).bfloat16()
        if not torch.equal(found, expected):
            return f"product {at} differs from torch's in {int((found != expected).sum())} places"
        x = found.view(torch.int8)
    return None


def measure(tokens: int, layers: Sequence[PreparedWeight], seconds: float) -> list[Record]:
    """The chain, a reading kernel for each weight, and one for all, timed in turn."""
    device = "cuda"
    cost = Cost(
        flops=sum(2 * tokens * n * k for n, k in (weight.shape for weight in layers)),
        bytes_read=sum(weight.size_bytes + tokens * weight.shape[1] for weight in layers),
        bytes_written=sum(2 * tokens * weight.shape[0] for weight in layers),
    )
    workload = Workload(
        name=f"{SCHEME} int8-codes chain of {len(layers) // len(SHAPES)} layers M={tokens}",
        sizes={"M": tokens, "products": len(layers)},
        dtype=torch.int8,
        options={"scheme": SCHEME, "activation": "int8", "codes": True},
    )
    row = partial(Row, op=OP, workload=workload, direction="forward", cache="cold", launch="graph")
    x = torch.randint(-127, 128, (tokens, SHAPES[0][1]), dtype=torch.int8, device=device)
    out = torch.zeros(1, dtype=torch.int32, device=device)
    everything = torch.cat([weight.codes.view(-1) for weight in layers])

    def read_each() -> None:
        for weight in layers:
            read_bytes.read(weight.codes.view(-1), out)

    calls: dict[str, Callable[[], object]] = {
        NAME: partial(chain, x, layers),
        READ: read_each,
        READ_ALL: partial(read_bytes.read, everything, out),
    }
    with timing_on(device) as (timer, stream):
        graphs = {name: capture([call], stream, keep=1) for name, call in calls.items()}
        graphs[NAME][0]()
        torch.cuda.synchronize()
        wrong = off(x, layers[:CHECKED], graphs[NAME][1][0])
        if wrong is not None:
            return [row(variant=NAME).refused(Outcome.WRONG, wrong)]
        blocks = [Block(run=replay, calls=1, queued=True) for replay, _ in graphs.values()]
        samples = interleave(timer, blocks, seconds)
    limits = ceilings(device).model_copy(update={"copy_bytes_per_second": copy_bandwidth(device)})
    return [
        row(variant=name)
        .timed(median_interval(one), cost, limits, peak_bytes=None, state={})
        .model_copy(update={"subject": SUBJECT})
        for name, one in zip(calls, samples, strict=True)
    ]


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each variant, about")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    layers, good = weights(options.layers, "cuda"), True
    for tokens in options.tokens or (1, 8):
        records = measure(tokens, layers, options.seconds)
        if options.out is not None:
            append(options.out, records)
        for record in records:
            ok = record.outcome is Outcome.OK
            words = f"{record.metrics['time_us']:.1f} us" if ok else f"WRONG {record.reason}"
            print(
                f"{record.settings['workload']}: {record.settings['variant']} {words}", flush=True
            )
            good = good and ok
    return not good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
