"""Parts of packed weights are the whole's own codes and scales; what cannot be cut is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import FormatError, UnsupportedError
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.models.architectures import find_architecture
from tercet.models.decoder.config import read_config
from tercet.models.decoder.tensor_parallel.cut import Cut, cut_modules
from tercet.models.decoder.tensor_parallel.cut_weight import cut_entry, cut_packed, find_misfit
from tercet.models.decoder.tensor_parallel.rank_source import RankSource

ROWS, COLUMNS = 48, 192
SCHEMES = [
    *("ternary-g32", "ternary-g32-bits2", "nonary-g32", "int2-g16-asym", "int3-g32-hqq"),
    *("int4-channel", "int8-tensor", "int4-b8x32", "int5-g32-bfloat16", "int6-g16"),
    *("fp8_e4m3-b16x32", "mxfp4", "nvfp4", "ternary-g32-sparse_2_4", "ternary-g4-sparse_3_4"),
    *("int3-g48", "int4-b8x96"),
]


def packed(scheme_name: str) -> PackedTensor:
    scheme = parse_scheme(scheme_name)
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2))
    if scheme.storage.name.startswith("sparse"):
        kept = int(scheme.storage.name[7])
        quads = weight.view(-1, 4).sign()
        weight = (quads * (torch.arange(4) < kept)).view(ROWS, COLUMNS)
    scale, zero = fit(weight, scheme, "absmax")
    return encode(weight, scheme, scale, zero)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("count", [2, 3, 6])
def test_columns_put_together_again(scheme: str, count: int) -> None:
    whole, width = packed(scheme), COLUMNS // count
    entry = PackedModule(format=scheme, shape=whole.shape)
    cuts = [Cut(columns=range(at, at + width)) for at in range(0, COLUMNS, width)]
    assert [find_misfit(entry, cut) for cut in cuts] == [None] * count
    parts = [cut_packed(whole, cut, "w") for cut in cuts]
    for part in parts:
        part.validate()
    assert torch.equal(torch.cat([part.dequantize() for part in parts], 1), whole.dequantize())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_put_together_again(scheme: str) -> None:
    whole = packed(scheme)
    cuts = [Cut(rows=(range(16), range(32, 48))), Cut(rows=(range(16, 32),))]
    entry = PackedModule(format=scheme, shape=whole.shape)
    assert [find_misfit(entry, cut) for cut in cuts] == [None, None]
    parts = [cut_packed(whole, cut, "w") for cut in cuts]
    for part in parts:
        part.validate()
    found = torch.cat([part.dequantize() for part in parts])
    assert cut_entry(entry, cuts[1]).format == parts[1].scheme.name
    order = torch.tensor([*range(16), *range(32, 48), *range(16, 32)])
    assert torch.equal(found, whole.dequantize()[order])


def test_bytes_that_are_no_codes_are_found_in_the_part_alone() -> None:
    whole = packed("ternary-g32")
    whole.codes[3, 2] = 250
    left, right = Cut(columns=range(96)), Cut(columns=range(96, 192))
    with pytest.raises(FormatError, match=r"w\.packed: 1 words are none of storage 'base3'"):
        cut_packed(whole, left, "w")
    cut_packed(whole, right, "w").validate()


@pytest.mark.parametrize(
    ("scheme", "how", "cut", "what"),
    [
        ("int4-channel", {"hadamard": 64}, Cut(columns=range(96)), "blocks of 64 columns"),
        ("int4-b32x64", {}, Cut(rows=(range(16), range(32, 48))), "blocks of 32 rows"),
        ("int4-b32x64", {}, Cut(rows=(range(16),)), None),
        ("int4-g64", {}, Cut(columns=range(96, 192)), None),
    ],
)
def test_misfits(scheme: str, how: dict[str, Any], cut: Cut, what: str | None) -> None:
    found = find_misfit(PackedModule(format=scheme, shape=(ROWS, COLUMNS), **how), cut)
    assert found is None if what is None else found is not None and found.startswith(what)


def load(model: Any, source: Any, count: int) -> RankSource:
    config = model.config.to_dict()
    architecture = find_architecture(config)
    return RankSource(source, architecture, read_config(architecture, config), 0, count)


@pytest.mark.parametrize(
    ("kind", "options", "count", "message"),
    [
        (
            "llama", {}, 3,
            r"over 3 devices: 4 attention heads, 2 key-value heads and a feed-forward width of "
            r"128 cannot be cut .*; this model can be cut over 1, 2 or 4",
        ),
        ("llama", {"num_attention_heads": 1, "num_key_value_heads": 1}, 2, "on one device only"),
        ("falcon_h1", {}, 2, "of a falcon_h1: its state spaces cannot be cut"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_cut(
    kind: str, options: dict[str, Any], count: int, message: str,
    build: Callable[..., Any], source_of: Callable[..., Any],
) -> None:  # fmt: skip
    model = build(kind, **options)
    with pytest.raises(UnsupportedError, match=message):
        load(model, source_of(model), count)


def test_rotations_that_cannot_be_cut_say_over_how_many_devices_they_can(
    build: Callable[..., Any], source_of: Callable[..., Any]
) -> None:
    model = build("llama")
    source = source_of(model)
    source.pack("model.layers.1.mlp.down_proj", "int4-g64", hadamard=64)
    load(model, source, 2)
    with pytest.raises(
        UnsupportedError,
        match=r"over 4 devices: model\.layers\.1\.mlp\.down_proj \[64, 128\] of format int4-g64 "
        r"would be cut through blocks of 64 columns .*; this checkpoint can be cut over 1 or 2",
    ):
        load(model, source, 4)


def test_every_row_and_column_is_on_one_rank(build: Callable[..., Any]) -> None:
    config = build("phi3").config.to_dict()
    architecture = find_architecture(config)
    sizes = read_config(architecture, config)
    ranks = [cut_modules(architecture, sizes, rank, 2) for rank in range(2)]
    counts = {
        "self_attn.qkv_proj": 128, "self_attn.o_proj": 64,
        "mlp.gate_up_proj": 256, "mlp.down_proj": 128,
    }  # fmt: skip
    assert ranks[0].keys() == {f"model.layers.{n}.{name}" for n in range(2) for name in counts}
    for name, count in counts.items():
        cuts = [rank[f"model.layers.1.{name}"] for rank in ranks]
        runs = [run for cut in cuts for run in (*cut.rows, cut.columns or range(0))]
        assert sorted(place for run in runs for place in run) == list(range(count))


def test_what_scales_an_input_is_cut_with_its_columns(
    build: Callable[..., Any], source_of: Callable[..., Any]
) -> None:
    model = build("llama")
    source = source_of(model)
    scale = torch.arange(128.0)
    source.pack("model.layers.0.mlp.down_proj", "int4-g32", input_scale=scale)
    source.pack("model.layers.0.mlp.up_proj", "int4-g32", input_scale=scale[:64])
    rank = load(model, source, 4)
    assert torch.equal(rank.input_scale("model.layers.0.mlp.down_proj"), scale[:32])
    assert torch.equal(rank.input_scale("model.layers.0.mlp.up_proj"), scale[:64])
    assert rank.modules["model.layers.0.mlp.down_proj"].shape == (64, 32)
    assert rank.modules["model.layers.0.mlp.up_proj"].shape == (32, 64)
