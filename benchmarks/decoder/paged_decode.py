"""How fast `paged_attention` reads caches of numbers and of codes, on a GPU.

python benchmarks/decoder/paged_decode.py [--cache KIND ...] [--peer flashinfer] [--out FILE]

One new token of each sequence behind a context, Llama-3-8B's heads (32 of queries, 8 of keys, 128
wide), bfloat16 queries, blocks of 64 positions in drawn order. Launches are captured in a graph,
over so many caches that none is in the L2 when its turn comes again, each launch a programmatic
dependent of the one before, as in a decoder's step. The median of 20 replays counts.

`--peer flashinfer` measures FlashInfer (PyPI: flashinfer-python) on the same caches in the same
run, in graphs, too, planned before: with and without tensor cores, of which the faster counts. Its
results must be ours to 1 %.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
PEER_CACHES = ("bf16", "fp8_e4m3")  # that a peer has, too
SCALE = 0.01
_OTHERS_BYTES = 256 * 2**20  # that are read between two reads of a cache
_REPLAYS = 20
_AGREE = 0.01
_PACKAGES = {"flashinfer": "flashinfer-python"}


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Of one launch; `scales` of keys and of values, None for numbers."""

    keys: Tensor
    values: Tensor
    blocks: Tensor
    lengths: Tensor
    scales: tuple[Tensor | None, Tensor | None]

    @property
    def nbytes(self) -> int:
        """What a launch must read."""
        parts = (self.keys, self.values, *self.scales)
        return sum(part.nbytes for part in parts if part is not None)


Attend = Callable[[Tensor, Cache], Tensor]


def drawn(kept: str, batch: int, context: int, seed: int) -> Cache:
    """One cache, in blocks in drawn order."""
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
            scale.fill_(SCALE)
        parts.append(codes)
        scales.append(scale)
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
    keys, values = parts
    return Cache(
        keys=keys, values=values, blocks=order.view(batch, table), lengths=lengths,
        scales=(scales[0], scales[1]),
    )  # fmt: skip


def ours(q: Tensor, cache: Cache) -> Tensor:
    """By `paged_attention`."""
    of_keys, of_values = cache.scales
    return paged_attention(
        q, cache.keys, cache.values, cache.blocks, cache.lengths,
        key_scales=of_keys, value_scales=of_values,
    )  # fmt: skip


def by_flashinfer(caches: Sequence[Cache], *, tensor_cores: bool) -> Attend:
    """By FlashInfer, planned for these caches; of codes, with one scale for all of them."""
    planned = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper
    workspace = torch.zeros(128 * 2**20, dtype=torch.uint8, device="cuda")
    wrappers = dict[int, Any]()
    for cache in caches:
        batch, table = cache.blocks.shape
        first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * table
        last = torch.full((batch,), BLOCK, dtype=torch.int32, device="cuda")
        wrapper = planned(
            workspace, "HND", use_cuda_graph=True, use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=first.clone(), paged_kv_last_page_len_buffer=last.clone(),
            paged_kv_indices_buffer=cache.blocks.flatten().clone(),
        )  # fmt: skip
        wrapper.plan(
            first.cpu(), cache.blocks.flatten(), last.cpu(), HEADS, GROUPS, WIDTH, BLOCK,
            q_data_type=torch.bfloat16, kv_data_type=cache.keys.dtype,
        )  # fmt: skip
        wrappers[id(cache)] = wrapper

    def attend(q: Tensor, cache: Cache) -> Tensor:
        scale = None if cache.scales[0] is None else SCALE
        found = wrappers[id(cache)].run(
            q[:, 0], (cache.keys, cache.values), k_scale=scale, v_scale=scale
        )
        return found[:, None]

    return attend


@torch.inference_mode()
def measure(kept: str, batch: int, context: int, peer: str | None) -> dict[str, dict[str, float]]:
    """Microseconds of one launch, and the bytes that it must read, by "ours" and by the peer."""
    first = drawn(kept, batch, context, 0)
    count = max(2, min(64, 1 + _OTHERS_BYTES // first.nbytes))
    caches = [first, *(drawn(kept, batch, context, seed) for seed in range(1, count))]
    q = torch.randn(batch, 1, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)
    found = {"ours": timed(ours, q, caches)}
    if peer is not None and kept in PEER_CACHES:
        tried = list[dict[str, float]]()
        for tensor_cores in (False, True):
            attend = by_flashinfer(caches, tensor_cores=tensor_cores)
            wanted = ours(q, first).float()
            error = float((attend(q, first).float() - wanted).norm() / wanted.norm())
            if not error < _AGREE:
                raise SystemExit(f"{peer}'s results are {error:.1%} off ours: {kept}, {batch}")
            tried.append({**timed(attend, q, caches), "tensor_cores": float(tensor_cores)})
        found[peer] = min(tried, key=lambda each: each["us"])
    return found


def timed(attend: Attend, q: Tensor, caches: Sequence[Cache]) -> dict[str, float]:
    """Of one launch, in a graph of one a cache."""

    def run() -> Tensor:
        for cache in caches:
            found = attend(q, cache)
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
        times.append(begin.elapsed_time(end) / len(caches) * 1e3)
    median, needed = statistics.median(times), caches[0].nbytes
    return {"us": median, "read_bytes": float(needed), "read_TB_per_s": needed / median / 1e6}


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", nargs="*", choices=CACHES, default=CACHES)
    parser.add_argument("--peer", choices=_PACKAGES, help="measure this one beside it")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    environment = Environment.here(torch.cuda.get_device_name())
    for batch, context in POINTS:
        for kept in options.cache:
            for by, metrics in measure(kept, batch, context, options.peer).items():
                words = {n: round(value, 2) for n, value in metrics.items()}
                print(batch, context, kept, by, words, flush=True)
                if options.out is None:
                    continue
                settings = {"batch": batch, "context": context, "kv_cache_dtype": kept}
                if by != "ours":
                    settings["peer"] = f"{by} {version(_PACKAGES[by])}"
                record = Record(
                    kind="paged decode",
                    subject="paged_attention",
                    settings=settings,
                    metrics=metrics,
                    environment=environment,
                )
                append(options.out, [record])
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
