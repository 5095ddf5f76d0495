"""linear_packed on this CPU against torch's float32 linear, in one run.

    python benchmarks/linear_packed_cpu.py [--out records.jsonl] [--threads 2] [--quick]

Variants are interleaved and medians reported. Weights that fit a cache are measured twice: warm, as
they are, and cold, rotating through copies of 64 MB in all, as a decoder meets them.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from tercet.formats import encode, fit, parse_scheme
from tercet.ops.linear_packed import linear_packed
from tercet.ops.linear_packed.cpu import isas
from tercet.packed_weight.weight import PreparedWeight, prepare

SCHEMES = ("ternary", "nonary", "int4", "int8")
SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576), (4096, 4096), (14336, 4096))
ROWS = (1, 8, 512)
COLD_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement; bytes are those of the weights as they lie in memory."""

    scheme: str
    rows: int
    n: int
    k: int
    cache: str
    time_us: float
    float32_time_us: float
    weight_bytes: int
    gbytes_per_s: float
    share_of_bandwidth: float
    speedup: float
    gflops: float


def read_bandwidth() -> float:
    """GB/s of summing 256 MB: the best of ten."""
    data = torch.ones(64 << 20)
    best = min(_time(lambda: data.sum()) for _ in range(10))
    return data.numel() * 4 / best / 1e9


def _time(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _rotating(run: Callable[[int], object], copies: int) -> Callable[[], object]:
    state = [0]

    def step() -> object:
        state[0] = (state[0] + 1) % copies
        return run(state[0])

    return step


def medians(runs: list[Callable[[], object]], seconds: float) -> list[float]:
    """Median seconds of each; they take turns until the time is up.

    Before each turn comes a pause: OpenMP's threads spin for a while after torch's own products and
    would hold the core that the next variant needs.
    """
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or len(times[0]) < 6:
        for run, found in zip(runs, times, strict=True):
            time.sleep(0.005)
            run()
            limit = time.perf_counter() + 0.01
            found += [_time(run), _time(run)]
            while time.perf_counter() < limit:
                found.append(_time(run))
    return [median(found) for found in times]


def weight_of(scheme: str, n: int, k: int) -> PreparedWeight:
    """A random prepared weight."""
    parsed = parse_scheme(scheme)
    dense = torch.randn(n, k)
    return prepare(encode(dense, parsed, *fit(dense, parsed, "absmax")))


def _copies(size_bytes: int) -> int:
    return max(1, -(-COLD_BYTES // max(size_bytes, 1)))


def _clone(weight: PreparedWeight) -> PreparedWeight:
    return PreparedWeight(
        codes=weight.codes.clone(),
        scale=weight.scale.clone(),
        zero=None,
        scheme=weight.scheme,
        shape=weight.shape,
        layout=weight.layout,
    )


def measure(n: int, k: int, bandwidth: float, seconds: float) -> list[Row]:
    """All schemes and row counts at one shape."""
    dense = torch.randn(n, k)
    packed = {scheme: weight_of(scheme, n, k) for scheme in SCHEMES}
    rows: list[Row] = []
    for cache in ("cold", "warm"):
        cold = cache == "cold"
        denses = [dense] + [dense.clone() for _ in range(_copies(dense.nbytes) - 1) if cold]
        sets = {
            scheme: [weight]
            + [_clone(weight) for _ in range(_copies(weight.size_bytes) - 1) if cold]
            for scheme, weight in packed.items()
        }
        for m in ROWS:
            rows += _measure_rows(torch.randn(m, k), denses, sets, cache, bandwidth, seconds)
    return rows


def _measure_rows(
    x: Tensor,
    denses: list[Tensor],
    sets: dict[str, list[PreparedWeight]],
    cache: str,
    bandwidth: float,
    seconds: float,
) -> list[Row]:
    m, k = x.shape
    n = denses[0].shape[0]
    linear = torch.nn.functional.linear
    runs = [_rotating(lambda i: linear(x, denses[i]), len(denses))]
    for copies in sets.values():
        runs.append(_rotating(lambda i, copies=copies: linear_packed(x, copies[i]), len(copies)))
    dense_time, *times = medians(runs, seconds)
    rows = list[Row]()
    for (scheme, copies), found in zip(sets.items(), times, strict=True):
        speed = copies[0].size_bytes / found / 1e9
        rows.append(
            Row(
                scheme=scheme,
                rows=m,
                n=n,
                k=k,
                cache=cache,
                time_us=round(found * 1e6, 2),
                float32_time_us=round(dense_time * 1e6, 2),
                weight_bytes=copies[0].size_bytes,
                gbytes_per_s=round(speed, 2),
                share_of_bandwidth=round(speed / bandwidth, 3),
                speedup=round(dense_time / found, 2),
                gflops=round(2 * m * n * k / found / 1e9, 1),
            )
        )
    return rows


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    """Measures, prints, and appends records to --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.3, help="per variant")
    parser.add_argument("--quick", action="store_true", help="three small shapes only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bandwidth = read_bandwidth()
    environment = {
        "machine": _machine(),
        "threads": options.threads,
        "isa": isas()[-1],
        "torch": torch.__version__,
        "read_gbytes_per_s": round(bandwidth, 2),
    }
    print(json.dumps(environment))
    print("scheme   M     N      K     cache  time_us   fp32_us   GB/s  of_bw  speedup  GFLOP/s")
    with torch.inference_mode():
        for n, k in SHAPES[:3] if options.quick else SHAPES:
            for row in measure(n, k, bandwidth, options.seconds):
                print(
                    f"{row.scheme:8} {row.rows:<5} {row.n:<6} {row.k:<5} {row.cache:5} "
                    f"{row.time_us:9.1f} {row.float32_time_us:9.1f} {row.gbytes_per_s:6.1f} "
                    f"{row.share_of_bandwidth:6.2f} {row.speedup:7.2f} {row.gflops:8.1f}",
                    flush=True,
                )
                if options.out is not None:
                    with options.out.open("a") as file:
                        file.write(json.dumps({**environment, **asdict(row)}) + "\n")


if __name__ == "__main__":
    main()
