"""Fit: formulas by hand, and searches that never lose to what they start from."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.errors import FormatError
from tercet.formats import encode, fit, parse_scheme
from tercet.formats.fit import blocks_of, join_blocks, mse

SCHEMES = (
    "ternary",
    "nonary-g32",
    "int2-g16",
    "int3-g16-asym",
    "int4-b4x16",
    "int4-g16-hqq",
    "int8-g16-asym",
    "int8-channel",
    "fp8_e4m3",
    "fp4_e2m1-tensor",
    "mxfp4",
    "nvfp4",
)


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).pow(3) * 0.02 + 0.01


def squared_error(weight: Tensor, name: str, method: str) -> float:
    scheme = parse_scheme(name)
    packed = encode(weight, scheme, *fit(weight, scheme, method))
    return float((packed.dequantize(torch.float64) - weight).square().sum())


@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 70), seed=st.integers(0, 99))
def test_mse_is_never_worse_than_absmax(name: str, rows: int, columns: int, seed: int) -> None:
    weight = heavy_tailed(rows, columns, seed)
    absmax = squared_error(weight, name, "absmax")
    assert squared_error(weight, name, "mse") <= absmax * (1 + 1e-5) + 1e-15


@pytest.mark.parametrize(("name", "ratio"), [("ternary", 0.9), ("int3", 0.8), ("int4-asym", 0.98)])
def test_mse_is_better_than_absmax_on_heavy_tails(name: str, ratio: float) -> None:
    weight = heavy_tailed(64, 256)
    assert squared_error(weight, name, "mse") < ratio * squared_error(weight, name, "absmax")


def test_all_positive_weights_with_int8_zero_points() -> None:
    # shrinking such a range moves its zero point below -128, which int8 cannot hold
    weight = torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) + 1
    absmax = squared_error(weight, "int8-g64-asym", "absmax")
    assert squared_error(weight, "int8-g64-asym", "mse") <= absmax


def test_small_weights_in_nvfp4_are_searched_under_their_second_level() -> None:
    # without it all scales fall among the subnormals of e4m3
    weight = heavy_tailed(32, 128) * 0.01
    absmax = squared_error(weight, "nvfp4", "absmax")
    assert squared_error(weight, "nvfp4", "mse") < 0.98 * absmax


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ternary-tensor", 4.0), ("nonary-tensor", 1.0), ("int4-tensor", 4 / 7), ("int2-tensor", 4.0)],
)
def test_absmax_by_hand(name: str, expected: float) -> None:
    scale, zero = fit(torch.tensor([[1.0, -4.0], [0.5, 2.0]]), parse_scheme(name), "absmax")
    assert scale.tolist() == [[pytest.approx(expected)]]
    assert zero is None


@pytest.mark.parametrize(
    ("row", "scale", "zero"),
    [
        ([-1.0, 2.0], 3 / 15, -3.0),
        ([1.0, 3.0], 3 / 15, -8.0),
        ([-3.0, -1.0], 3 / 15, 7.0),
        ([0.0, 0.0], 0.0, 0.0),
    ],
)
def test_absmax_with_zero_points_by_hand(row: list[float], scale: float, zero: float) -> None:
    found, found_zero = fit(torch.tensor([row]), parse_scheme("int4-channel-asym"), "absmax")
    assert found.tolist() == [[pytest.approx(scale)]]
    assert found_zero is not None
    assert found_zero.tolist() == [[zero]]


@pytest.mark.parametrize(("name", "share"), [("ternary", 1.0), ("nonary", 0.5), ("int4", 2 / 7)])
def test_absmean_is_the_formula_on_groups_that_do_not_divide(name: str, share: float) -> None:
    weight = heavy_tailed(3, 10)
    scale, zero = fit(weight, parse_scheme(f"{name}-g4"), "absmean")
    parts = (weight[:, :4], weight[:, 4:8], weight[:, 8:])
    expected = torch.stack([part.double().abs().mean(1) for part in parts], 1) * share
    torch.testing.assert_close(scale.double(), expected)
    assert zero is None


def test_absmean_refuses_zero_points() -> None:
    with pytest.raises(FormatError, match="absmean is symmetric; scheme 'int4-g64-asym'"):
        fit(torch.ones(1, 64), parse_scheme("int4-asym"), "absmean")


def test_importance_moves_error_to_columns_that_do_not_matter() -> None:
    weight, scheme = heavy_tailed(32, 64), parse_scheme("int3-g64")
    importance = torch.ones(64)
    importance[:8] = 100

    def weighted(found: Tensor) -> float:
        error = encode(weight, scheme, found).dequantize() - weight
        return float((error.square() * importance).sum())

    assert weighted(mse(weight, scheme, importance)[0]) < 0.9 * weighted(mse(weight, scheme)[0])
    assert torch.equal(mse(weight, scheme, torch.ones(64))[0], mse(weight, scheme)[0])


@given(rows=st.integers(0, 7), columns=st.integers(0, 20), seed=st.integers(0, 9))
@pytest.mark.parametrize("name", ["int4-g8", "int4-b3x8", "int4-tensor", "int4-channel"])
def test_blocks_join_to_the_matrix(name: str, rows: int, columns: int, seed: int) -> None:
    weight, scheme = heavy_tailed(rows, columns, seed), parse_scheme(name)
    blocks, mask = blocks_of(weight, scheme)
    assert blocks.shape[:2] == scheme.scaling.scale_shape((rows, columns))
    assert float(mask.sum()) == weight.numel()
    assert torch.equal(join_blocks(blocks, scheme, (rows, columns)), weight)


def test_an_unknown_fit_offers_the_nearest() -> None:
    with pytest.raises(FormatError, match="unknown scale fit 'absmx': did you mean 'absmax'"):
        fit(torch.ones(1, 1), parse_scheme("int4"), "absmx")
