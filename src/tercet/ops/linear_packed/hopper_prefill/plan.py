"""How linear_packed for many tokens is scheduled on Hopper: the plans of tile_scheduler.cuh."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tercet.ops.linear_packed.hopper_prefill.tiles import (
    Costs,
    Kind,
    KindCost,
    TileCost,
    read_costs,
)
from tercet.packed_weight.hopper.tile_shape import TileShape, parse_tile

FP8 = "float8_e4m3fn"
SCALED = "scaled_float16"  # x in float16, against codes times the scales of their groups
_DEPTH = 128  # columns a stage
_SWIZZLE_TOKENS = 1024  # tokens of the tiles that are rasterized together
_LEAST_STAGES = 4  # of a tile, to each cluster that shares it


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a product is scheduled.

    Attributes:
        tile: what one block computes.
        clusters: of blocks in the grid.
        tiles: of y.
        data_parallel_tiles: the first so many go round the clusters, each computed by one of them.
        stream_k_stages: of the K of the other tiles, laid end to end, each cluster takes so many.
        swizzle: tiles of tokens that are rasterized together, so that they find W in the L2 cache.
        us: expected time.
    """

    tile: TileShape
    clusters: int
    tiles: int
    data_parallel_tiles: int
    stream_k_stages: int
    swizzle: int
    us: float

    @property
    def blocks(self) -> int:
        """Of the launch."""
        return self.clusters * self.tile.blocks

    @property
    def partial_sums(self) -> int:
        """int32 of stream-K's workspace: two of each block's tiles, a multiple of 4."""
        tile = self.tile
        return 2 * self.clusters * tile.cluster_size * tile.rows * tile.tokens

    @property
    def arrivals(self) -> int:
        """int32 counters: of each stream-K tile, block of the cluster and warpgroup."""
        shared = self.tiles - self.data_parallel_tiles
        return shared * self.tile.cluster_size * self.tile.warpgroups


def plans(
    m: int, n: int, k: int, bits: int, group: int, processors: int, x: str = "int8"
) -> Iterator[Plan]:
    """Every sensible plan of y [m, n] = x [m, k] W^T, with the time that it is expected to take.

    x is the name of its dtype, or SCALED.
    """
    costs, kind = read_costs(), _kind(x)
    measured = costs.x[kind]
    for name, cost in measured.tiles.items():
        if group and not cost.groups:
            continue
        tile = parse_tile(name)
        tiles = -(-m // tile.tokens) * -(-n // (tile.rows * tile.cluster_size))
        fitting = processors if tile.blocks < 4 else int(processors * costs.clusters_of_four)
        clusters, depth = fitting // tile.blocks, -(-k // _DEPTH)
        if tile.split > 1:
            if tiles > clusters or depth < 2 * tile.split:
                continue
            clusters = tiles
        work = _work(costs, measured, kind, tile, cost, bits, group)
        for data_parallel, stages, us in _schedules(tile, tiles, clusters, depth, work):
            yield Plan(
                tile=tile,
                clusters=clusters,
                tiles=tiles,
                data_parallel_tiles=data_parallel,
                stream_k_stages=stages,
                swizzle=max(1, _SWIZZLE_TOKENS // tile.tokens),
                us=costs.start_us
                - (costs.overlap_us if 2 * clusters * tile.blocks <= processors else 0.0)
                + (us**4 + (n * k * bits / 8 / costs.bytes_per_us) ** 4) ** 0.25,
            )


def _kind(x: str) -> Kind:
    """What x is multiplied as, by the name of its dtype."""
    known: dict[str, Kind] = {"int8": "int8", FP8: "fp8", SCALED: "scaled"}
    return known.get(x, "float")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the stages of a tile take.

    Attributes:
        stage_us: of one stage.
        result_us: of the tile's end.
        stream_k_stage_us: more of a stage of a tile that several clusters share.
        stream_k_us: of a cluster that has such tiles, once, and of each partial sum.
        partial_sum_us: of each partial sum.
        data_parallel: whether no tile may be shared, or sharing does not pay.
    """

    stage_us: float
    result_us: float
    stream_k_stage_us: float
    stream_k_us: float
    partial_sum_us: float
    data_parallel: bool


def _work(
    costs: Costs,
    measured: KindCost,
    kind: Kind,
    tile: TileShape,
    cost: TileCost,
    bits: int,
    group: int,
) -> Work:
    # scaling sums stops the tensor cores for a while; fp8 sums are added up as often anyway
    scaled = group if kind not in ("fp8", "scaled") else 0
    scaling = tile.rows * tile.tokens * costs.scaling_us / scaled if scaled else 0.0
    return Work(
        stage_us=cost.stage_us + cost.more_us.get(bits, 0.0) + scaling,
        result_us=cost.result_us,
        stream_k_stage_us=measured.stream_k_stage_us.get(bits, 0.0),
        stream_k_us=costs.stream_k_us,
        partial_sum_us=costs.partial_sum_us,
        # of a shared tile each block reads 8-bit codes that no other does, all of them from memory
        data_parallel=(group > 0 and kind != "scaled")
        or tile.split > 1
        or (bits == 8 and kind != "fp8"),
    )


def _schedules(
    tile: TileShape, tiles: int, clusters: int, depth: int, work: Work
) -> Iterator[tuple[int, int, float]]:
    """(data-parallel tiles, stream-K stages, time of the products): no tile is shared, or those of
    the last round are, or of the last two."""
    each = _tile_us(-(-depth // tile.split), work)
    rounds = tiles // clusters
    yield tiles, 1, -(-tiles // clusters) * each
    if work.data_parallel or tiles % clusters == 0:
        return
    for alone in {rounds, rounds - 1} - {0, -1}:
        stages = max(-(-(tiles - alone * clusters) * depth // clusters), min(_LEAST_STAGES, depth))
        partial_sums = (depth / stages + 1) * tile.rows * tile.tokens
        shared = work.stream_k_us + partial_sums * work.partial_sum_us
        shared += stages * work.stream_k_stage_us
        yield alone * clusters, stages, alone * each + _tile_us(stages, work) + shared


def _tile_us(stages: int, work: Work) -> float:
    """Of so many stages and the result."""
    return stages * work.stage_us + work.result_us


@cache
def best_plan(
    m: int, n: int, k: int, bits: int, group: int, processors: int, x: str = "int8"
) -> Plan:
    """The plan that is expected to be fastest."""
    return min(plans(m, n, k, bits, group, processors, x), key=lambda plan: plan.us)
