"""linear_packed for 8-bit activations and many tokens on Hopper: prefill.cu."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.kernel.cuda import build_cuda, stream
from tercet.kernel.launch import multiprocessors

_SOURCE = Path(__file__).parent / "prefill.cu"
_NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_DEPTH = 128  # columns a stage
_BAND_TOKENS = 1024  # tokens of the tiles that are walked together
_START_CYCLES = 1500
_MOST_ARRIVALS = 4096  # fewer than two rounds of tiles are cut, in two halves each
_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What one block computes: so many rows of W by so many tokens."""

    rows: int
    tokens: int
    cluster: int

    def stage_cycles(self, bits: int, group: int) -> float:
        """Of one stage of 128 columns: tensor cores, decoding, and what a block can load.

        Where scales are of groups of columns, sums become floats after each.
        """
        products = self.rows * self.tokens * _DEPTH / 4096
        decoding = self.rows / 64 * 4 * {2: 22, 4: 20, 8: 8}[bits]
        loading = (self.tokens * _DEPTH / self.cluster + self.rows * 16 * bits) / 28
        scaling = self.rows * self.tokens / 48 * (_DEPTH / group) if group else 0.0
        return max(products, decoding, loading) + scaling / 2 + 30

    def result_cycles(self) -> float:
        """From sums to y."""
        return 600 + self.rows * self.tokens / 16

    def parts_cycles(self, sharers: float) -> float:
        """To write the sums of a cut tile and to add up those of the others."""
        return 1500 + sharers * self.rows * self.tokens * 4 / 64


# as launch_shape in prefill.cu; with scales of groups only these
_GROUP_SHAPES = (4, 5, 6, 7)
TILES = (
    Tile(rows=256, tokens=128, cluster=1),
    Tile(rows=256, tokens=128, cluster=2),
    Tile(rows=128, tokens=256, cluster=1),
    Tile(rows=128, tokens=256, cluster=2),
    Tile(rows=128, tokens=128, cluster=1),
    Tile(rows=128, tokens=128, cluster=2),
    Tile(rows=256, tokens=64, cluster=1),
    Tile(rows=128, tokens=64, cluster=2),
    Tile(rows=256, tokens=32, cluster=1),
    Tile(rows=256, tokens=16, cluster=1),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is dealt out.

    Tiles [0, whole) go round the clusters; of the others every cluster takes `part` stages.
    """

    shape: int
    clusters: int
    tiles: int
    whole: int
    part: int
    band: int
    cycles: float


def plans(m: int, n: int, k: int, bits: int, group: int, processors: int) -> Iterator[Plan]:
    """Every sensible plan of y [m, n] = x [m, k] W^T, with its expected cycles."""
    for shape, tile in enumerate(TILES):
        if not group or shape in _GROUP_SHAPES:
            yield from _plans_of(shape, tile, (m, n, -(-k // _DEPTH)), bits, group, processors)


def _plans_of(
    shape: int, tile: Tile, size: tuple[int, int, int], bits: int, group: int, processors: int
) -> Iterator[Plan]:
    m, n, depth = size
    clusters = processors // tile.cluster
    tiles = -(-m // tile.tokens) * -(-n // (tile.rows * tile.cluster))
    stage, result = tile.stage_cycles(bits, group), tile.result_cycles()
    round_ = depth * stage + result

    def plan(whole: int, part: int, cycles: float) -> Plan:
        return Plan(
            shape=shape,
            clusters=clusters,
            tiles=tiles,
            whole=whole,
            part=part,
            band=max(1, _BAND_TOKENS // tile.tokens),
            cycles=_START_CYCLES + cycles,
        )

    yield plan(tiles, 1, -(-tiles // clusters) * round_)
    if group or tiles % clusters == 0:
        return
    for rounds in {tiles // clusters, max(0, tiles // clusters - 1)}:
        rest = tiles - rounds * clusters
        part = max(-(-rest * depth // clusters), min(4, depth))
        cut = part * stage + tile.parts_cycles(depth / part + 1) + result
        yield plan(rounds * clusters, part, rounds * round_ + cut)


@cache
def best_plan(m: int, n: int, k: int, bits: int, group: int, processors: int) -> Plan:
    """The plan that is expected to be fastest."""
    return min(plans(m, n, k, bits, group, processors), key=lambda plan: plan.cycles)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, its function's arguments declared."""
    library.tercet_linear_prefill.argtypes = (
        *(_I32, _I32, _I32, _P, _I64, _P, _P, _P, _I32, _P, _I32, _P, _P, _I32),
        *(_I32, _I32, _I32, _I32, _I32, _I32, _I32, _P, _P, _P),
    )
    return library


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The compiled library. BuildError where it cannot be built."""
    return declare(build_cuda(_SOURCE))


@cache
def _arrivals(device: int) -> Tensor:
    """Counters of cut tiles, which every launch leaves at zero."""
    return torch.zeros(_MOST_ARRIVALS, dtype=torch.int32, device=f"cuda:{device}")


def product(
    x: Tensor,
    x_scale: Tensor,
    codes: Tensor,
    w_scale: Tensor,
    *,
    bits: int,
    group: int = 0,
    rows: int,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    plan: Plan | None = None,
    library: ctypes.CDLL | None = None,
) -> Tensor:
    """y [M, N] = (x W^T) x_scale w_scale + bias + residual, one rounding to dtype.

    Args:
        x: int8 [M, K], contiguous.
        x_scale: float32 [M].
        codes: int32 [ceil(N / 16), units, 32, 4] in the layout `fragments`.
        w_scale: float32, float16 or bfloat16 [ceil(N / 16), G, 16]; G = 1, or ceil(K / group).
        bits: 2, 4 or 8 a code.
        group: 0, or 64 or 128 columns a scale (2 and 4 bits).
        rows: N.
        dtype: of y: float32, float16 or bfloat16.
        bias: [N] or None.
        residual: [M, N] in dtype, contiguous, or None.
        plan: None takes the one expected to be fastest.
        library: None builds it.
    """
    m, k = x.shape
    if k % 16 or x.data_ptr() % 16:
        wide = x.new_empty(m, -(-k // 16) * 16)
        wide[:, :k] = x
        x = wide
    y = torch.empty((m, rows), dtype=dtype, device=x.device)
    if not y.numel():
        return y
    device = x.device.index or 0
    plan = plan or best_plan(m, rows, k, bits, group, multiprocessors(x.device))
    tile, cut = TILES[plan.shape], plan.tiles - plan.whole
    parts = arrivals = None
    if cut:
        blocks = plan.clusters * tile.cluster
        size = blocks * 2 * tile.rows * tile.tokens
        parts = torch.empty(size, dtype=torch.int32, device=x.device)
        arrivals = _arrivals(device)
    status = (library or build()).tercet_linear_prefill(
        bits, group, plan.shape, x.data_ptr(), x.stride(0), x_scale.data_ptr(), codes.data_ptr(),
        w_scale.data_ptr(), _NUMBERS[w_scale.dtype],
        bias.data_ptr() if bias is not None else None,
        _NUMBERS[bias.dtype] if bias is not None else 0,
        residual.data_ptr() if residual is not None else None,
        y.data_ptr(), _NUMBERS[dtype], m, rows, k, plan.clusters, plan.whole, plan.part, plan.band,
        parts.data_ptr() if parts is not None else None,
        arrivals.data_ptr() if arrivals is not None else None,
        stream(),
    )  # fmt: skip
    if status:
        raise RuntimeError(f"linear_packed: CUDA error {status} at launch")
    return y
