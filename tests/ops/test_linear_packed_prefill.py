"""The prefill kernel without a GPU: every stage of every tile is dealt out once, whatever the size;
what it cannot take is refused."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.ops.linear_packed.hopper_prefill import launch as hopper_prefill
from tercet.ops.linear_packed.hopper_prefill import launch_float as hopper_prefill_float
from tercet.ops.linear_packed.hopper_prefill import launch_fp8 as hopper_prefill_fp8
from tercet.ops.linear_packed.hopper_prefill import launch_scaled as hopper_prefill_scaled
from tercet.ops.linear_packed.hopper_prefill.plan import FP8, SCALED, Plan, best_plan, plans
from tercet.ops.linear_packed.hopper_prefill.tiles import read_costs
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.hopper.tile_shape import TileShape, parse_tile

SIZES = ((1, 16, 4), (16, 4096, 4096), (257, 808, 2056), (256, 28672, 8192), (4096, 4096, 14336))
PROCESSORS = 132


def dealt(plan: Plan, depth: int) -> Counter[tuple[int, int]]:
    """As struct TileScheduler in tile_scheduler.cuh: how often each (tile, stage) is computed."""
    seen: Counter[tuple[int, int]] = Counter()
    rest, split = (plan.tiles - plan.data_parallel_tiles) * depth, plan.tile.split
    for cluster in range(plan.clusters):
        for tile in range(cluster, plan.data_parallel_tiles, plan.clusters):
            for rank in range(split):
                part = range(depth * rank // split, depth * (rank + 1) // split)
                assert part
                seen.update((tile, stage) for stage in part)
        at = min(cluster * plan.stream_k_stages, rest)
        seen.update(
            (plan.data_parallel_tiles + i // depth, i % depth)
            for i in range(at, min(at + plan.stream_k_stages, rest))
        )
    return seen


@pytest.mark.parametrize("x", ["int8", "bfloat16", SCALED, FP8])
@pytest.mark.parametrize("size", SIZES)
def test_every_stage_of_every_tile_is_computed_once(size: tuple[int, int, int], x: str) -> None:
    m, n, k = size
    depth = -(-k // 128)
    for plan in plans(m, n, k, 2, 0, PROCESSORS, x):
        tile = plan.tile
        tiles = -(-m // tile.tokens) * -(-n // (tile.rows * tile.cluster_size))
        assert plan.tiles == tiles
        assert dealt(plan, depth) == Counter(
            {(t, s): 1 for t in range(tiles) for s in range(depth)}
        )


def test_a_tile_with_scales_of_groups_is_never_cut() -> None:
    for m, n, k in SIZES:
        for x in ("int8", FP8):
            assert all(
                plan.data_parallel_tiles == plan.tiles
                for plan in plans(m, n, k, 2, 128, PROCESSORS, x)
            )


def test_codes_that_are_scaled_themselves_are_cut_as_those_of_whole_rows() -> None:
    """No sums wait for scales there, and a weight is decoded for as many tokens as fit."""
    for group in (64, 128):
        plan = best_plan(512, 28672, 4096, 2, group, PROCESSORS, SCALED)
        assert (plan.tile.rows, plan.tile.tokens) == (128, 256)
        assert plan.data_parallel_tiles < plan.tiles
    assert best_plan(2048, 4096, 14336, 4, 64, PROCESSORS, SCALED).tile.tokens >= 176


def test_many_tokens_take_the_largest_tiles_and_few_tokens_narrow_ones() -> None:
    assert best_plan(4096, 14336, 4096, 2, 0, PROCESSORS).tile.tokens >= 128
    assert best_plan(17, 14336, 4096, 2, 0, PROCESSORS).tile.tokens <= 64


def test_wide_codes_against_wide_x_are_never_cut_and_take_low_tiles_for_few_tokens() -> None:
    """They were slower cut, and in tiles of 256 rows and 64 tokens that four blocks split."""
    for m, n, k in SIZES:
        found = tuple(plans(m, n, k, 8, 0, PROCESSORS, "float16"))
        narrow = {
            (plan.tile, plan.data_parallel_tiles): plan.us
            for plan in plans(m, n, k, 8, 0, PROCESSORS)
        }
        assert all(plan.data_parallel_tiles == plan.tiles for plan in found)
        assert all(
            plan.us > narrow.get((plan.tile, plan.data_parallel_tiles), 0.0) for plan in found
        )
    assert best_plan(64, 4096, 4096, 8, 0, PROCESSORS, "float16").tile.rows == 128


def test_8_bit_codes_with_int8_x_take_whole_tiles_as_many_tokens_high_as_rows_wide() -> None:
    """Cut ones read each column for one block alone: 1600 us where whole ones took 1420."""
    for m, n, k in ((4096, 8192, 28672), (1024, 28672, 8192)):
        plan = best_plan(m, n, k, 8, 0, PROCESSORS)
        assert plan.data_parallel_tiles == plan.tiles
        assert (plan.tile.rows, plan.tile.tokens) == (128, 256)
    cut = best_plan(4096, 8192, 28672, 2, 0, PROCESSORS)
    assert cut.data_parallel_tiles < cut.tiles


def test_few_tiles_split_their_columns_among_the_multiprocessors() -> None:
    plan = best_plan(256, 4096, 14336, 2, 0, PROCESSORS)
    assert plan.tile.split > 1
    assert plan.clusters * plan.tile.blocks > PROCESSORS * 0.9


def test_few_tiles_with_scales_of_groups_split_their_columns_too() -> None:
    plan = best_plan(64, 4096, 14336, 2, 128, PROCESSORS)
    assert (plan.tile.split, plan.blocks) == (2, 64)
    # where there are tiles enough, whole ones
    assert best_plan(4096, 14336, 4096, 2, 128, PROCESSORS).tile.split == 1


@pytest.mark.parametrize("group", [0, 128])
def test_clusters_fit_the_gpu_and_a_split_tile_has_one_round(group: int) -> None:
    for m, n, k in SIZES:
        for plan in plans(m, n, k, 2, group, PROCESSORS):
            tile = plan.tile
            assert plan.clusters * tile.blocks <= PROCESSORS
            assert tile.split == 1 or plan.data_parallel_tiles == plan.tiles == plan.clusters


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_cut_tiles_have_places_of_their_own(size: tuple[int, int, int]) -> None:
    m, n, k = size
    depth = -(-k // 128)
    for plan in plans(m, n, k, 2, 0, PROCESSORS):
        tile = plan.tile
        slots = set[tuple[int, int]]()
        for cut in range(plan.tiles - plan.data_parallel_tiles):
            first, last = (
                cut * depth // plan.stream_k_stages,
                (cut * depth + depth - 1) // plan.stream_k_stages,
            )
            assert last < plan.clusters
            if first == last:
                continue
            for owner in range(first, last + 1):
                slot = (owner, 0 if owner * plan.stream_k_stages // depth == cut else 1)
                assert slot not in slots
                slots.add(slot)
        assert 2 * plan.clusters * tile.cluster_size * tile.rows * tile.tokens == plan.partial_sums
        assert (
            plan.tiles - plan.data_parallel_tiles
        ) * tile.cluster_size * tile.warpgroups == plan.arrivals


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ({"M": 16}, {}, "takes M from 17"),
        ({"K": 2**17}, {}, "takes K from 1 to 131071"),
        ({}, {"activation": "none"}, "takes activation int8"),
        ({}, {"activation": "fp8_e4m3"}, "takes activation int8"),
        ({}, {"layout": "rows16"}, "takes layout fragments"),
        ({}, {"scheme": "fp8_e4m3"}, "takes element ternary"),
        ({}, {"scheme": "mxfp4"}, "takes element ternary"),
        ({}, {"scheme": "int4-asym"}, "takes zero False"),
        ({}, {"scheme": "nonary-g32-bfloat16"}, "takes group 0 or 64 or 128"),
        ({}, {}, None),
        ({}, {"scheme": "int8-channel"}, None),
        ({}, {"scheme": "int4-g64"}, None),
    ],
)
def test_what_it_cannot_take_is_refused_in_words(
    sizes: dict[str, int], options: dict[str, Any], words: str | None
) -> None:
    known = {"scheme": "ternary", "activation": "int8", "layout": "fragments", "out": "bfloat16"}
    requirement = OP.implementation("hopper_prefill").requirement
    reason = requirement.unfit({"M": 64, "N": 64, "K": 64} | sizes, OP.traits(known | options))
    assert reason is None if words is None else reason is not None and words in reason


@pytest.mark.parametrize(
    ("scheme", "x", "words"),
    [
        ("ternary", torch.bfloat16, None),
        ("nonary", torch.float16, None),
        ("int4-g64", torch.bfloat16, None),
        ("int2-g64-hqq", torch.bfloat16, "takes element ternary"),
        ("int8-channel", torch.bfloat16, "takes element ternary"),
        ("fp8_e4m3", torch.bfloat16, None),
        ("fp8_e4m3-b128x128", torch.float8_e4m3fn, None),
        ("ternary", torch.float8_e4m3fn, None),
    ],
)
def test_what_16_bit_activations_are_taken_with(
    scheme: str, x: torch.dtype, words: str | None
) -> None:
    traits = OP.traits({"scheme": scheme, "activation": "none", "layout": "fragments"})
    requirement = OP.implementation("hopper_prefill_float").requirement
    assert x in requirement.dtypes
    assert torch.float32 not in requirement.dtypes
    reason = requirement.unfit({"M": 64, "N": 64, "K": 64}, traits)
    assert reason is None if words is None else reason is not None and words in reason


@pytest.mark.parametrize(
    ("scheme", "out", "words"),
    [
        ("int4-g64", "bfloat16", None),
        ("nonary-g128", "bfloat16", None),
        ("int4-g64", "float16", "takes out bfloat16"),
        ("int4-channel", "bfloat16", "takes group 64 or 128"),
        ("int4-g64-asym", "bfloat16", "takes zero False"),
        ("ternary-g64", "bfloat16", "takes element nonary"),
    ],
)
def test_codes_are_rounded_to_11_bits_with_their_scales_for_bfloat16_alone(
    scheme: str, out: str, words: str | None
) -> None:
    """Ternary ones need no rounding, nor a tolerance for it."""
    traits = OP.traits({"scheme": scheme, "activation": "none", "layout": "fragments", "out": out})
    implementation = OP.implementation("hopper_prefill_scaled")
    reason = implementation.requirement.unfit({"M": 64, "N": 64, "K": 640}, traits)
    assert reason is None if words is None else reason is not None and words in reason
    assert [each.relative for each in implementation.tolerances] == [2**-8 + 2**-11 + 2e-6]


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("fp8_e4m3", {}, None),
        ("ternary", {}, None),
        ("fp8_e4m3-b128x128", {}, None),
        ("fp8_e5m2", {}, "takes element ternary or fp8_e4m3"),
        ("nonary", {}, "takes element ternary or fp8_e4m3"),
        ("fp8_e4m3", {"activation": "none"}, "takes activation fp8_e4m3"),
        ("fp8_e4m3", {"out": "float16"}, "takes out bfloat16"),
        ("fp8_e4m3", {"out": "float32"}, "takes out bfloat16"),
        ("fp8_e4m3", {"K": 1}, None),
        ("fp8_e4m3", {"sums": "float32"}, "takes TERCET_FP8_SUMS short, it is float32"),
        ("fp8_e4m3", {"sums": "short"}, None),
    ],
)
def test_fp8_products_are_for_bfloat16_results_unless_float32_sums_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, scheme: str, options: dict[str, Any], words: str | None
) -> None:
    """Results of other dtypes keep more bits than sums of 64 columns have."""
    known = {"activation": "fp8_e4m3", "layout": "fragments", "out": "bfloat16"} | options
    monkeypatch.setenv("TERCET_FP8_SUMS", known.pop("sums", ""))
    sizes: dict[str, Any] = {"M": 64, "N": 64, "K": known.pop("K", 2048)}
    requirement = OP.implementation("hopper_prefill_fp8").requirement
    reason = requirement.unfit(sizes, OP.traits({"scheme": scheme} | known))
    assert reason is None if words is None else reason is not None and words in reason


def test_measured_tiles_are_those_that_launch_cuh_has() -> None:
    text = (Path(hopper_prefill.__file__).parent / "launch.cuh").read_text(encoding="utf-8")
    built = set[TileShape]()
    for parameters in re.findall(r"\bTILE\(([\d, ]+)\);", text):
        warpgroup_rows, tokens, cluster_size, *rest = map(int, parameters.split(","))
        split, warpgroups = (*rest, *(1, 2)[len(rest) :])
        built.add(
            TileShape(
                rows=64 * warpgroup_rows * warpgroups,
                tokens=tokens,
                cluster_size=cluster_size,
                split=split,
                warpgroups=warpgroups,
            )
        )
    costs = read_costs()
    named = {parse_tile(name) for kind in costs.x.values() for name in kind.tiles}
    assert named == built


@pytest.mark.parametrize(
    ("name", "word"),
    [("m128n64_team3", "no tile is named"), ("m128n64_split1", "m128n64_cluster2, m128n64_split4")],
)
def test_an_unknown_tile_is_refused_by_name(tmp_path: Path, name: str, word: str) -> None:
    path = tmp_path / "gpu.json"
    known = read_costs().model_dump(mode="json")
    tiles = known["x"]["fp8"]["tiles"]
    known["x"]["fp8"]["tiles"] = {name: tiles["m128n128"]}
    path.write_text(json.dumps(known))
    with pytest.raises(UnsupportedError, match=word):
        read_costs(path)
    known["x"]["fp8"]["tiles"] = {"m128n64": {"stage_us": 1.0}}
    path.write_text(json.dumps(known))
    with pytest.raises(UnsupportedError, match=r"gpu\.json has no costs of tiles"):
        read_costs(path)


def test_between_them_they_name_every_source_and_no_build_twice() -> None:
    folder = Path(hopper_prefill.__file__).parent
    modules = hopper_prefill, hopper_prefill_float, hopper_prefill_scaled, hopper_prefill_fp8
    named = tuple(build for module in modules for build in module.BUILDS)
    assert {build.source for build in named} == set(folder.rglob("*.cu"))
    names = [build.name for build in named]
    assert len(set(names)) == len(names) == 16
