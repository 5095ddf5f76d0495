"""How fast `paged_attention` reads caches of numbers and of codes, on a GPU.

python benchmarks/decoder/paged_decode.py [--cache KIND ...] [--out FILE]

One new token of each sequence behind a context, Llama-3-8B's heads (32 of queries, 8 of keys, 128
wide), bfloat16 queries, blocks of 64 positions in drawn order. Launches are captured in a graph,
over so many caches that none is in the L2 when its turn comes again, each launch a programmatic
dependent of the one before, as in a decoder's step. The median of 20 replays counts.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.device.captured import Captured, warm_up
from tercet.ops.paged_attention import paged_attention
from tercet.packed_weight import cached_rows
from tercet.packed_weight.cached_rows import CACHED
from tercet.records import Environment, Record, append

HEADS, GROUPS, WIDTH, BLOCK = 32, 8, 128, 64
POINTS = [
    *((1, context) for context in (1024, 8192, 65536)),
    *((8, context) for context in (1024, 8192, 65536)),
    *((16, context) for context in (1024, 8192)),
    *((64, context) for context in (1024, 8192)),
]
CACHES = ("bf16", *CACHED)
_OTHERS_BYTES = 256 * 2**20  # that are read between two reads of a cache
_REPLAYS = 20


def drawn(
    kept: str, batch: int, context: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """keys, values, blocks, lengths and scales of one cache."""
    generator = torch.Generator("cuda").manual_seed(seed)
    table = context // BLOCK
    rows = (batch * table, GROUPS, BLOCK)
    order = torch.randperm(batch * table, generator=generator, device="cuda").int()
    parts, scales = [], []
    for _ in range(2):
        codes, scale = cached_rows.empty(
            rows, WIDTH, None if kept == "bf16" else kept, torch.bfloat16, torch.device("cuda")
        )
        if scale is None:
            codes.normal_(generator=generator)
        else:
            # any byte below this is a number in each of them
            codes.view(torch.uint8).random_(0, 120, generator=generator)
            scale.fill_(0.01)
        parts.append(codes)
        scales.append(scale)
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    keys, values = parts
    return keys, values, order.view(batch, table), lengths, scales[0], scales[1]


@torch.inference_mode()
def measure(kept: str, batch: int, context: int) -> dict[str, float]:
    """Microseconds of one launch, and the bytes that it must read."""
    first = drawn(kept, batch, context, 0)
    needed = sum(part.nbytes for part in (*first[:2], *first[4:]) if part is not None)
    count = max(2, min(64, 1 + _OTHERS_BYTES // needed))
    caches = [first, *(drawn(kept, batch, context, seed) for seed in range(1, count))]
    q = torch.randn(batch, 1, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def run() -> Tensor:
        for keys, values, blocks, lengths, of_keys, of_values in caches:
            found = paged_attention(
                q, keys, values, blocks, lengths, key_scales=of_keys, value_scales=of_values
            )
        return found

    device = torch.device("cuda")
    warm_up(run, device)
    graph = Captured(run, device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = list[float]()
    for _ in range(_REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / count * 1e3)
    median = statistics.median(times)
    return {"us": median, "read_bytes": float(needed), "read_TB_per_s": needed / median / 1e6}


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", nargs="*", choices=CACHES, default=CACHES)
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    environment = Environment.here(torch.cuda.get_device_name())
    for batch, context in POINTS:
        for kept in options.cache:
            metrics = measure(kept, batch, context)
            torch.cuda.empty_cache()
            print(batch, context, kept, {n: round(value, 2) for n, value in metrics.items()})
            if options.out is None:
                continue
            settings = {"batch": batch, "context": context, "kv_cache_dtype": kept}
            record = Record(
                kind="paged decode",
                subject="paged_attention",
                settings=settings,
                metrics=metrics,
                environment=environment,
            )
            append(options.out, [record])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
