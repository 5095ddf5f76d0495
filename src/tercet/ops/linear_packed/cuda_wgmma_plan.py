"""How linear_packed for many tokens is dealt out on Hopper: the plans of prefill_plan.cuh."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

FP8 = "float8_e4m3fn"
_DEPTH = 128  # columns a stage
_BAND_TOKENS = 1024  # tokens of the tiles that are walked together
# fitted to times on an H200: they name the fastest plan but for a percent or two
_START_US = 1.7
_EARLY_US = 0.6  # won where two such kernels have room at once
_BYTES_A_US = 4.1e6
_CUT_US = 10.0  # counters set to zero, sums written, others' waited for
_PART_US = 4.6e-5  # a sum of another's part
_SCALING_US = 1.7e-3  # a sum and group of scales
# More of a stage where 16-bit x meets 8-bit codes, by rows and tokens: two lanes read each word of
# those, and convert it. Cutting tiles did not pay there.
_WIDENING_US = {
    (256, 128): 0.08,
    (128, 128): 0.07,
    (256, 64): 0.21,
    (128, 64): 0.04,
    (256, 32): 0.12,
    (128, 32): 0.06,
}
# Likewise where int8 x meets them: four times the bytes of 2-bit codes, and numbers that take more
# power. Of a cut tile each block reads columns that no other does, all of them from memory.
_BYTES_US = {
    (256, 128): 0.17,
    (128, 256): 0.155,
    (256, 176): 0.22,
    (192, 128): 0.12,
    (128, 128): 0.09,
    (256, 64): 0.13,
    (128, 64): 0.04,
    (256, 32): 0.12,
    (128, 32): 0.06,
}
_NIBBLE_US = 0.07  # likewise where 16-bit x meets 4-bit codes
# Likewise of a cut tile's stage: where fp8 x meets 8-bit codes, of 16-bit x, of int8 x.
_ALONE_US, _WIDE_ALONE_US, _INT8_ALONE_US = 0.1, 0.12, 0.02
# 32 clusters of four blocks ran in two rounds on 132 multiprocessors, 24 in one
_FOURS = 0.73


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What one block computes, and what that takes, as measured on an H200.

    Attributes:
        rows, tokens: of W and of x.
        cluster: blocks of different rows that send each other the tokens.
        split: blocks that share the tile's columns.
        teams: groups of four warps that multiply.
        stage_us: of 128 columns.
        result_us: from sums to y, as far as nothing hides it.
    """

    rows: int
    tokens: int
    cluster: int = 1
    split: int = 1
    teams: int = 2
    stage_us: float
    result_us: float

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.split


# as launch_shape in prefill_launch.cuh
TILES = (
    Tile(rows=256, tokens=128, stage_us=0.648, result_us=0.6),
    Tile(rows=256, tokens=128, cluster=2, stage_us=0.633, result_us=1.2),
    Tile(rows=128, tokens=256, stage_us=0.634, result_us=1.7),
    Tile(rows=128, tokens=256, cluster=2, stage_us=0.641, result_us=1.8),
    Tile(rows=128, tokens=128, stage_us=0.332, result_us=1.3),
    Tile(rows=256, tokens=64, stage_us=0.346, result_us=1.8),
    Tile(rows=128, tokens=64, cluster=2, stage_us=0.246, result_us=1.8),
    Tile(rows=256, tokens=32, stage_us=0.302, result_us=1.3),
    Tile(rows=128, tokens=64, split=2, stage_us=0.267, result_us=1.9),
    Tile(rows=128, tokens=64, split=4, stage_us=0.259, result_us=2.3),
    Tile(rows=256, tokens=64, split=2, stage_us=0.329, result_us=3.9),
    Tile(rows=256, tokens=64, split=4, stage_us=0.339, result_us=4.0),
    Tile(rows=128, tokens=128, split=2, stage_us=0.326, result_us=3.1),
    Tile(rows=128, tokens=128, split=4, stage_us=0.326, result_us=3.4),
    Tile(rows=256, tokens=176, stage_us=0.872, result_us=1.0),
    Tile(rows=192, tokens=128, teams=3, stage_us=0.478, result_us=1.3),
    Tile(rows=256, tokens=128, teams=4, stage_us=0.655, result_us=0.8),
    Tile(rows=128, tokens=32, split=2, stage_us=0.252, result_us=1.6),
    Tile(rows=256, tokens=32, split=2, stage_us=0.28, result_us=3.0),
    # of fp8 x: sums are begun anew every 64 columns
    Tile(rows=128, tokens=128, stage_us=0.515, result_us=1.2),
    Tile(rows=128, tokens=176, stage_us=0.654, result_us=1.4),
    Tile(rows=128, tokens=64, cluster=2, stage_us=0.42, result_us=1.0),
    Tile(rows=256, tokens=64, stage_us=0.66, result_us=0.2),
    Tile(rows=256, tokens=32, stage_us=0.53, result_us=0.0),
    Tile(rows=128, tokens=64, split=2, stage_us=0.48, result_us=1.6),
    Tile(rows=128, tokens=128, split=2, stage_us=0.64, result_us=2.3),
    Tile(rows=128, tokens=32, split=2, stage_us=0.45, result_us=1.5),
)


def _shapes(x: str, group: int) -> tuple[int, ...]:
    """The tiles that exist, by their index."""
    if x == FP8:
        return (19, 20, 21) if group else tuple(range(19, 27))
    if group:
        return (4, 6, 8, 9, 12, 13) if x == "int8" else (4, 6)
    return (*range(16), 17, 18) if x == "int8" else (0, 1, *range(4, 14), 16, 17, 18)


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
    us: float

    @property
    def blocks(self) -> int:
        """Of the launch."""
        return self.clusters * TILES[self.shape].blocks

    @property
    def sums(self) -> int:
        """int32 that the parts of cut tiles take: two of each block, a multiple of 4."""
        tile = TILES[self.shape]
        return 2 * self.clusters * tile.cluster * tile.rows * tile.tokens

    @property
    def arrivals(self) -> int:
        """int32 counters: of each cut tile, block of the cluster and group of warps."""
        tile = TILES[self.shape]
        return (self.tiles - self.whole) * tile.cluster * tile.teams


def plans(
    m: int, n: int, k: int, bits: int, group: int, processors: int, x: str = "int8"
) -> Iterator[Plan]:
    """Every sensible plan of y [m, n] = x [m, k] W^T, with the time that it is expected to take.

    x is the name of its dtype.
    """
    for shape in _shapes(x, group):
        tile = TILES[shape]
        tiles = -(-m // tile.tokens) * -(-n // (tile.rows * tile.cluster))
        fitting = processors if tile.blocks < 4 else int(processors * _FOURS)
        clusters, depth = fitting // tile.blocks, -(-k // _DEPTH)
        if tile.split > 1:
            if tiles > clusters or depth < 2 * tile.split:
                continue
            clusters = tiles
        narrow = x in ("int8", FP8)
        scaled = group if x != FP8 else 0  # its sums are added up as often as they may be scaled
        work = Work(
            scaled=scaled,
            x_bytes=1 if narrow else 2,
            more_us=_codes_us(tile, x, bits),
            alone_us=_alone_us(x, bits),
            whole=group > 0 or tile.split > 1 or (bits == 8 and x != FP8),
        )
        for whole, part, us in _dealt(tile, tiles, clusters, depth, work):
            yield Plan(
                shape=shape,
                clusters=clusters,
                tiles=tiles,
                whole=whole,
                part=part,
                band=max(1, _BAND_TOKENS // tile.tokens),
                us=_START_US
                - (_EARLY_US if 2 * clusters * tile.blocks <= processors else 0.0)
                + (us**4 + (n * k * bits / 8 / _BYTES_A_US) ** 4) ** 0.25,
            )


def _codes_us(tile: Tile, x: str, bits: int) -> float:
    """More of a stage than of 2-bit codes."""
    if bits == 4 and x not in ("int8", FP8) and tile.tokens >= 64 and tile.split == 1:
        return _NIBBLE_US
    if bits < 8 or x == FP8:  # fp8's tiles are timed with 8-bit codes
        return 0.0
    extra = _BYTES_US if x == "int8" else _WIDENING_US
    return extra[tile.rows, tile.tokens]


def _alone_us(x: str, bits: int) -> float:
    """More of a cut tile's stage, whose columns no other block reads then."""
    if x == FP8:
        return _ALONE_US if bits == 8 else 0.0
    return _INT8_ALONE_US if x == "int8" else _WIDE_ALONE_US


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a stage takes beside its tile.

    Attributes:
        scaled: 0, or columns after which sums are scaled, where that is more work than without.
        x_bytes: of an element of x.
        more_us: of a stage, for wide codes.
        alone_us: of a stage of a cut tile, whose columns no other block reads then.
        whole: whether no tile may be cut, or cutting does not pay.
    """

    scaled: int
    x_bytes: int
    more_us: float
    alone_us: float
    whole: bool


def _dealt(
    tile: Tile, tiles: int, clusters: int, depth: int, work: Work
) -> Iterator[tuple[int, int, float]]:
    """(whole, part, time of the products): nothing cut, or the last round, or the last two."""
    each = _tile_us(tile, -(-depth // tile.split), work)
    rounds = tiles // clusters
    yield tiles, 1, -(-tiles // clusters) * each
    if work.whole or tiles % clusters == 0:
        return
    for whole in {rounds, rounds - 1} - {0, -1}:
        part = max(-(-(tiles - whole * clusters) * depth // clusters), min(4, depth))
        cut = _CUT_US + (depth / part + 1) * tile.rows * tile.tokens * _PART_US
        cut += part * work.alone_us
        yield whole * clusters, part, whole * each + _tile_us(tile, part, work) + cut


def _tile_us(tile: Tile, stages: int, work: Work) -> float:
    """Of so many stages and the result; scales of groups stop the tensor cores for a while."""
    scaling = tile.rows * tile.tokens * _SCALING_US / work.scaled if work.scaled else 0.0
    stage = tile.stage_us * work.x_bytes + work.more_us + scaling
    return stages * stage + tile.result_us


@cache
def best_plan(
    m: int, n: int, k: int, bits: int, group: int, processors: int, x: str = "int8"
) -> Plan:
    """The plan that is expected to be fastest."""
    return min(plans(m, n, k, bits, group, processors, x), key=lambda plan: plan.us)
