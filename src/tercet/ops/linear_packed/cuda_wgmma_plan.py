"""How linear_packed for many tokens is dealt out on Hopper: the plans of prefill_plan.cuh."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_DEPTH = 128  # columns a stage
_BAND_TOKENS = 1024  # tokens of the tiles that are walked together
_START_CYCLES = 1500


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


# as launch_shape in prefill_launch.cuh; with scales of groups only these
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

    @property
    def sums(self) -> int:
        """int32 that the parts of cut tiles take: two of each block, a multiple of 4."""
        tile = TILES[self.shape]
        return 2 * self.clusters * tile.cluster * tile.rows * tile.tokens

    @property
    def arrivals(self) -> int:
        """int32 counters: of each cut tile, block of the cluster and group of warps."""
        return 2 * (self.tiles - self.whole) * TILES[self.shape].cluster


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
