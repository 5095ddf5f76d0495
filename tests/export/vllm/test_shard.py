"""Tensor-parallel shards side by side are the weight, to the bit."""

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.export.vllm.shard_of import shard_of
from tercet.formats import PackedTensor, from_codes, parse_scheme
from tercet.formats.shard import Shard, cut
from tercet.models.catalog import load, names

MODELS = [name for name in names() if name.startswith(("llama-3", "qwen3"))]
RANKS = range(1, 9)
FORMATS = ("ternary-g64", "nonary-g64", "ternary-channel-float32")


def weight(name: str, shape: tuple[int, int]) -> PackedTensor:
    """Random codes, with scales and zero points that differ everywhere."""
    generator = torch.Generator().manual_seed(sum(shape))
    scheme = parse_scheme(name)
    levels = len(scheme.element.levels)
    codes = torch.randint(levels, shape, generator=generator, dtype=torch.uint8)
    if scheme.storage.name == "sparse_2_4":
        codes = torch.tensor([0, 1, 2, 1], dtype=torch.uint8).repeat(shape[0], shape[1] // 4)
    blocks = scheme.scaling.scale_shape(shape)
    scale = torch.arange(1, blocks[0] * blocks[1] + 1).reshape(blocks) / 8
    zero = torch.randint(-3, 4, blocks, generator=generator, dtype=torch.int8)
    return from_codes(
        codes,
        scheme,
        scale.to(scheme.scaling.torch_dtype),
        zero if scheme.scaling.zero is not None else None,
        torch.tensor(0.5) if scheme.scaling.second_level else None,
    )


def shapes(model: str) -> tuple[set[tuple[int, int]], set[int], int, int]:
    """Column-parallel shapes (rows, columns), row-parallel columns, heads, key heads."""
    size = load(model)
    widths = {w for w in (size.intermediate, size.expert_intermediate) if w}
    query, key = size.heads * size.head_dim, size.kv_heads * size.head_dim
    column = {(rows, size.hidden) for rows in (query, key, *widths)}
    return column, {query, *widths}, size.heads, size.kv_heads


def allowed(model: str, ranks: int) -> bool:
    """Whether vLLM shares out that model over so many ranks."""
    _, row_columns, heads, key_heads = shapes(model)
    keys = key_heads % ranks == 0 or ranks % key_heads == 0
    return heads % ranks == 0 and keys and all(columns % ranks == 0 for columns in row_columns)


def test_the_catalog_has_the_shapes_that_do_not_fit_bytes() -> None:
    assert {"llama-3-8b", "llama-3-70b", "llama-3-405b", "qwen3-0.6b", "qwen3-32b"} <= set(MODELS)
    assert (14336 // 8) % 5
    assert [ranks for ranks in RANKS if allowed("llama-3-8b", ranks)] == [1, 2, 4, 8]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("model", MODELS)
def test_every_row_parallel_shard_is_whole(model: str, name: str) -> None:
    _, row_columns, _, _ = shapes(model)
    for columns in row_columns:
        whole = weight(name, (3, columns))
        values = whole.dequantize()
        for ranks in RANKS:
            if not allowed(model, ranks):
                continue
            local = (3, columns // ranks)
            parts = [
                cut(whole, shard_of(whole.shape, local, rank, ranks, "m")) for rank in range(ranks)
            ]
            for part in parts:
                part.validate("shard")
                # no byte is shared with a neighbour: a row begins at a byte of its own
                assert part.codes.shape == (3, part.scheme.storage.row_bytes(local[1]))
            assert torch.equal(torch.cat([part.dequantize() for part in parts], 1), values)


@pytest.mark.parametrize("model", MODELS)
def test_every_column_parallel_row_is_held_once_or_by_neighbours(model: str) -> None:
    column, _, _, key_heads = shapes(model)
    head_dim = load(model).head_dim
    for shape in column:
        for ranks in RANKS:
            if not allowed(model, ranks):
                continue
            repeated = shape[0] == key_heads * head_dim and ranks > key_heads
            copies = ranks // key_heads if repeated else 1
            local = (shape[0] * copies // ranks, shape[1])
            found = [shard_of(shape, local, rank, ranks, "m") for rank in range(ranks)]
            held = torch.zeros(shape[0], dtype=torch.int64)
            for shard in found:
                held[shard.first_row : shard.end_row] += 1
                assert (shard.first_column, shard.end_column) == (0, shape[1])
            assert torch.equal(held, torch.full_like(held, copies))
            assert [s.first_row for s in found] == sorted(s.first_row for s in found)


def test_four_key_heads_on_eight_ranks_go_to_pairs_of_neighbours() -> None:
    firsts = [shard_of((4 * 128, 64), (128, 64), rank, 8, "k").first_row for rank in range(8)]
    assert firsts == [0, 0, 128, 128, 256, 256, 384, 384]


@pytest.mark.parametrize(
    "name",
    [
        "ternary-g64",
        "ternary-g64-sparse_2_4",
        "nonary-tensor",
        "int3-g32",
        "int4-g64-asym",
        "int8-channel",
        "int4-b16x64",
        "mxfp4",
        "nvfp4",
    ],
)
@pytest.mark.parametrize(("rows", "columns"), [((0, 48), (64, 128)), ((24, 40), (96, 144))])
def test_any_cut_keeps_every_value(
    name: str, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    whole = weight(name, (48, 192))
    shard = Shard(
        first_row=rows[0], end_row=rows[1], first_column=columns[0], end_column=columns[1]
    )
    part = cut(whole, shard)
    part.validate("shard")
    expected = whole.dequantize()[rows[0] : rows[1], columns[0] : columns[1]]
    assert torch.equal(part.dequantize(), expected)


def test_groups_shrink_only_where_a_boundary_falls_inside_of_one() -> None:
    whole = weight("ternary-g64", (4, 384))
    inside = cut(whole, Shard(first_row=0, end_row=4, first_column=96, end_column=192))
    beside = cut(whole, Shard(first_row=0, end_row=4, first_column=128, end_column=256))
    assert inside.scheme.name == "ternary-g32"
    assert beside.scheme.name == "ternary-g64"
    assert torch.equal(inside.scale, whole.scale[:, [1, 2, 2]])


@pytest.mark.parametrize(
    ("shape", "local", "ranks"),
    [((6, 64), (2, 64), 4), ((8, 63), (8, 31), 2), ((8, 64), (3, 64), 2)],
)
def test_what_cannot_be_shared_out_is_refused(
    shape: tuple[int, int], local: tuple[int, int], ranks: int
) -> None:
    with pytest.raises(UnsupportedError, match=f"m: a weight .* over {ranks} ranks"):
        shard_of(shape, local, 0, ranks, "m")
