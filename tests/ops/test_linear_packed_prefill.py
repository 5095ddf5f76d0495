"""How the prefill kernel's work is dealt out: every stage of every tile once, whatever the size."""

from collections import Counter

import pytest

from tercet.ops.linear_packed.cuda_wgmma_plan import TILES, Plan, best_plan, plans

SIZES = ((1, 16, 4), (16, 4096, 4096), (257, 808, 2056), (256, 28672, 8192), (4096, 4096, 14336))
PROCESSORS = 132


def dealt(plan: Plan, depth: int) -> Counter[tuple[int, int]]:
    """As struct Walk in prefill_plan.cuh: how often each (tile, stage) is computed."""
    seen: Counter[tuple[int, int]] = Counter()
    rest = (plan.tiles - plan.whole) * depth
    for cluster in range(plan.clusters):
        for tile in range(cluster, plan.whole, plan.clusters):
            seen.update((tile, stage) for stage in range(depth))
        at = min(cluster * plan.part, rest)
        seen.update(
            (plan.whole + i // depth, i % depth) for i in range(at, min(at + plan.part, rest))
        )
    return seen


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("size", SIZES)
def test_every_stage_of_every_tile_is_computed_once(size: tuple[int, int, int], bits: int) -> None:
    m, n, k = size
    depth = -(-k // 128)
    for plan in plans(m, n, k, bits, 0, PROCESSORS):
        tile = TILES[plan.shape]
        tiles = -(-m // tile.tokens) * -(-n // (tile.rows * tile.cluster))
        assert plan.tiles == tiles
        assert dealt(plan, depth) == Counter(
            {(t, s): 1 for t in range(tiles) for s in range(depth)}
        )


def test_a_tile_with_scales_of_groups_is_never_cut() -> None:
    for m, n, k in SIZES:
        assert all(plan.whole == plan.tiles for plan in plans(m, n, k, 2, 128, PROCESSORS))


def test_many_tokens_take_the_largest_tiles_and_few_tokens_narrow_ones() -> None:
    assert TILES[best_plan(4096, 14336, 4096, 2, 0, PROCESSORS).shape].tokens >= 128
    assert TILES[best_plan(16, 14336, 4096, 2, 0, PROCESSORS).shape].tokens == 16
