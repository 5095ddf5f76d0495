"""The loops in C++, by every instruction set of this machine, and in Triton, against torch."""

import pytest
import torch
from torch import Tensor

from tercet import environment
from tercet.compress.ptq import quadratic
from tercet.compress.ptq.grid import Grid
from tercet.compress.ptq.native import columns, columns_triton, scale_search
from tercet.compress.ptq.native.columns import BLOCK, Columns, spread_block, sweep_block
from tercet.formats import encode, fit, parse_scheme
from tercet.formats.fit import mse as search_in_torch

SHAPES = [(1, 1), (3, 5), (63, BLOCK), (64, 17), (65, BLOCK), (130, 40)]
FORMATS = ["ternary-g32", "nonary-g32", "int4-g32-asym", "int8-channel"]


@pytest.fixture(params=environment.CPU_ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERCET_CPU_ISA", request.param)
    return str(request.param)


def problem(rows: int, count: int, name: str) -> tuple[Tensor, Columns, Tensor]:
    """W^T [K, N], the grid of W, and a correlated H [K, K]."""
    generator = torch.Generator().manual_seed(rows + count)
    weight = torch.randn(rows, count, generator=generator)
    inputs = torch.randn(4 * count, count, generator=generator)
    inputs = inputs @ torch.randn(count, count, generator=generator)
    scheme = parse_scheme(name)
    grid = Grid.of(scheme, (rows, count), *fit(weight, scheme), "w")
    gram = quadratic.add_damping(inputs.T @ inputs / len(inputs), 0.05)
    return weight.T.contiguous(), Columns.of(grid), gram


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "count"), SHAPES)
def test_spread_is_torchs(
    rows: int, count: int, name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, grid, gram = problem(rows, count, name)
    factor = torch.linalg.cholesky(torch.linalg.inv(gram.double()), upper=True).float()
    before = rest.clone()
    found = spread_block(rest, grid, factor, factor.diagonal().reciprocal())
    assert torch.equal(rest, before)
    monkeypatch.setattr(columns, "loops", lambda: None)
    expected = spread_block(rest, grid, factor, factor.diagonal().reciprocal())
    assert_alike(found, expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "count"), SHAPES)
def test_sweep_is_torchs_and_knows_its_gain(
    rows: int, count: int, name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, grid, gram = problem(rows, count, name)
    quantized = grid.values(columns.round_levels(weight * grid.inverse, grid.element))
    slope = gram @ (weight - quantized)
    pivot = gram.diagonal().reciprocal()
    levels, change, gain = sweep_block(quantized, slope, grid, gram, pivot)
    losses = [
        float(quadratic.loss(weight.T.double(), values.T.double(), gram.double()))
        for values in (quantized, grid.values(levels))
    ]
    torch.testing.assert_close(quantized + change, grid.values(levels))
    assert float(gain) == pytest.approx(losses[0] - losses[1], rel=1e-3, abs=1e-4 * losses[0])
    monkeypatch.setattr(columns, "loops", lambda: None)
    expected = sweep_block(quantized, slope, grid, gram, pivot)
    assert_alike((levels, change), expected[:2])
    assert float(gain) == pytest.approx(float(expected[2]), rel=1e-2, abs=1e-3 * losses[0])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "count"), SHAPES)
def test_triton_rounds_and_sweeps_as_torch_does(
    rows: int, count: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, grid, gram = problem(rows, count, name)
    factor = torch.linalg.cholesky(torch.linalg.inv(gram.double()), upper=True).float()
    pivot = factor.diagonal().reciprocal()
    factor = factor.contiguous()
    found = columns_triton.spread(weight, factor, pivot, grid.grid, grid.bounds)
    monkeypatch.setattr(columns, "loops", lambda: None)
    assert_alike(found, spread_block(weight, grid, factor, pivot))
    quantized = grid.values(columns.round_levels(weight * grid.inverse, grid.element))
    slope, pivot = gram @ (weight - quantized), gram.diagonal().reciprocal()
    levels, change, gain = columns_triton.sweep(
        quantized, slope, gram, pivot, grid.grid, grid.bounds
    )
    expected = sweep_block(quantized, slope, grid, gram, pivot)
    assert_alike((levels, change), expected[:2])
    before = quadratic.loss(weight.T, quantized.T, gram)
    assert float(gain) == pytest.approx(float(expected[2]), rel=1e-2, abs=1e-3 * before)


def assert_alike(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Of levels and what follows from them: rows with a value on a border may differ."""
    same = (found[0] == expected[0]).all(0)
    assert same.float().mean() >= 0.97
    torch.testing.assert_close(found[1][:, same], expected[1][:, same], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*FORMATS, "int4-g24", "int3-g16-hqq", "ternary-tensor"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (7, 100), (200, 96)])
def test_the_search_finds_torchs_scales(
    name: str, weighted: bool, shape: tuple[int, int], isa: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).pow(3) + 0.1
    weight[0, : shape[1] // 2] = 0
    importance = torch.rand(shape[1], generator=generator) if weighted else None
    scheme = parse_scheme(name)
    found = scale_search.mse(weight, scheme, importance)
    expected = search_in_torch(weight, scheme, importance)
    same = found[0] == expected[0]
    assert same.float().mean() >= 0.99
    if found[1] is not None and expected[1] is not None:
        assert torch.equal(found[1][same], expected[1][same])
    weights = torch.ones(shape[1]) if importance is None else importance
    errors = [
        ((encode(weight, scheme, *fitted).dequantize() - weight).square() * weights).sum()
        for fitted in (found, expected)
    ]
    torch.testing.assert_close(*errors, rtol=1e-5, atol=1e-8)


def test_rows_in_chunks_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(37, 64, generator=torch.Generator().manual_seed(0))
    whole = scale_search.mse(weight, parse_scheme("int4-g16-asym"))
    monkeypatch.setattr(scale_search, "_TRIALS_AT_ONCE", 1000)
    cut = scale_search.mse(weight, parse_scheme("int4-g16-asym"))
    assert torch.equal(whole[0], cut[0])
    assert whole[1] is not None
    assert cut[1] is not None
    assert torch.equal(whole[1], cut[1])


def test_an_instruction_set_is_what_the_environment_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERCET_CPU_ISA", "avx2")
    assert columns.best_isa() == environment.CPU_ISAS.index("avx2")
    monkeypatch.delenv("TERCET_CPU_ISA")
    assert columns.best_isa() == len(environment.CPU_ISAS) - 1
