"""The loops in C++, by every instruction set of this machine, and in Triton, against torch."""

import pytest
import torch
from torch import Tensor

from tercet import environment
from tercet.compress.ptq import quadratic
from tercet.compress.ptq.grid import Grid
from tercet.compress.ptq.native import (
    columns,
    columns_triton,
    group_products_triton,
    scale_search,
)
from tercet.compress.ptq.native.columns import BLOCK, Columns, in_blocks, spread_block, sweep_block
from tercet.formats import Scheme, encode, fit, parse_scheme
from tercet.formats.fit import Fitted
from tercet.formats.fit import mse as search_in_torch
from tests.pretended_gpu import any_gpu

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


def spread(rest: Tensor, grid: Columns, factor: Tensor, pivot: Tensor) -> tuple[Tensor, Tensor]:
    """Levels and errors."""
    levels, errors = torch.empty_like(rest), torch.empty_like(rest)
    spread_block(rest, grid, factor, pivot, levels, errors)
    return levels, errors


def sweep(
    quantized: Tensor, slope: Tensor, grid: Columns, gram: Tensor, pivot: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Levels, the change and the gain."""
    levels, change = torch.empty_like(quantized), torch.empty_like(quantized)
    gain = sweep_block(quantized, slope, grid, gram, pivot, levels, change)
    return levels, change, gain


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "count"), SHAPES)
def test_spread_is_torchs(
    rows: int, count: int, name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, grid, gram = problem(rows, count, name)
    factor = torch.linalg.cholesky(torch.linalg.inv(gram.double()), upper=True).float()
    before = rest.clone()
    found = spread(rest, grid, factor, factor.diagonal().reciprocal())
    assert torch.equal(rest, before)
    monkeypatch.setattr(columns, "loops", lambda: None)
    expected = spread(rest, grid, factor, factor.diagonal().reciprocal())
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
    levels, change, gain = sweep(quantized, slope, grid, gram, pivot)
    losses = [
        float(quadratic.loss(weight.T.double(), values.T.double(), gram.double()))
        for values in (quantized, grid.values(levels))
    ]
    torch.testing.assert_close(quantized + change, grid.values(levels))
    assert float(gain) == pytest.approx(losses[0] - losses[1], rel=1e-3, abs=1e-4 * losses[0])
    monkeypatch.setattr(columns, "loops", lambda: None)
    expected = sweep(quantized, slope, grid, gram, pivot)
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
    quantized = grid.values(columns.round_levels(weight * grid.inverse, grid.element))
    slope, step = gram @ (weight - quantized), gram.diagonal().reciprocal()
    with any_gpu() as device:
        there = [one.to(device) for one in (weight, factor, pivot, quantized, slope, gram, step)]
        lattice = tuple(one if one is None else one.to(device) for one in grid.grid)
        results = [torch.empty_like(there[0]) for _ in range(4)]
        columns_triton.spread(*there[:3], lattice, grid.bounds, *results[:2])
        gain = columns_triton.sweep(*there[3:], lattice, grid.bounds, *results[2:])
        found = (results[0].cpu(), results[1].cpu())
        levels, change, gain = results[2].cpu(), results[3].cpu(), gain.cpu()
    monkeypatch.setattr(columns, "loops", lambda: None)
    assert_alike(found, spread(weight, grid, factor, pivot))
    expected = sweep(quantized, slope, grid, gram, step)
    assert_alike((levels, change), expected[:2])
    before = quadratic.loss(weight.T, quantized.T, gram)
    assert float(gain) == pytest.approx(float(expected[2]), rel=1e-2, abs=1e-3 * before)


@pytest.mark.parametrize("group", group_products_triton.GROUPS)
@pytest.mark.parametrize(("rows", "count"), [(1, 16), (3, 128), (130, 300), (5, 260)])
def test_triton_multiplies_groups_with_all_bits(rows: int, count: int, group: int) -> None:
    generator = torch.Generator().manual_seed(rows + count)
    basis = torch.randint(-255, 256, (count, rows), generator=generator).bfloat16()
    inputs = torch.randn(2 * count, count, generator=generator)
    gram = inputs.T @ inputs
    with any_gpu() as device:
        found = group_products_triton.group_products(gram.to(device), basis.to(device), group)
        found = found.cpu()
    starts = range(0, count, group)
    masks = torch.zeros(len(starts), count, 1, dtype=torch.float64)
    for g, start in enumerate(starts):
        masks[g, start : start + group] = 1
    own = masks * basis.double()
    expected = torch.einsum("gkn,kj,hjn->ngh", own, gram.double(), own).tril()
    size = torch.einsum("gkn,kj,hjn->ngh", own.abs(), gram.abs().double(), own.abs())
    # a float32's rounding of each term
    assert ((found.tril() - expected).abs() <= 2**-22 * size).all()


def test_columns_are_told_of_a_block_at_once_or_of_several() -> None:
    weight, grid, gram = problem(5, 3 * BLOCK + 7, "int4-g32-asym")
    factor = torch.linalg.cholesky(torch.linalg.inv(gram.double()), upper=True).float()
    found = []
    for told in (BLOCK, 2 * BLOCK, 8 * BLOCK):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(columns._TOLD_AT_ONCE, "cpu", told)
            rest, levels = weight.clone(), torch.empty_like(weight)
            for part, errors in in_blocks(rest, factor.T):
                spread_block(
                    *(rest[part], grid.slice(part), factor[part, part]),
                    *(factor.diagonal().reciprocal()[part], levels[part], errors),
                )
        found.append((levels, rest))
    for other in found[1:]:
        assert_alike(found[0], other)


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
    weight, importance = spiky(shape, weighted)
    scheme = parse_scheme(name)
    found = scale_search.mse(weight, scheme, importance)
    assert_as_good(found, search_in_torch(weight, scheme, importance), weight, scheme, importance)


@pytest.mark.parametrize("name", [*FORMATS, "int4-g24", "int3-g16-hqq", "ternary-tensor"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (7, 100), (200, 96)])
def test_the_search_on_a_gpu_finds_torchs_scales(
    name: str, weighted: bool, shape: tuple[int, int]
) -> None:
    weight, importance = spiky(shape, weighted)
    scheme = parse_scheme(name)
    expected = search_in_torch(weight, scheme, importance)
    with any_gpu() as device:
        there = None if importance is None else importance.to(device)
        scale, zero = scale_search.mse(weight.to(device), scheme, there)
        found = (scale.cpu(), None if zero is None else zero.cpu())
    assert_as_good(found, expected, weight, scheme, importance)


def spiky(shape: tuple[int, int], weighted: bool) -> tuple[Tensor, Tensor | None]:
    """A weight with long tails and groups of zeros, and what its columns count, or None."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).pow(3) + 0.1
    weight[0, : shape[1] // 2] = 0
    return weight, torch.rand(shape[1], generator=generator) if weighted else None


def assert_as_good(
    found: Fitted, expected: Fitted, weight: Tensor, scheme: Scheme, importance: Tensor | None
) -> None:
    """Nearly all scales are the same, and the error under all of them."""
    same = found[0] == expected[0]
    assert same.float().mean() >= 0.99
    if found[1] is not None and expected[1] is not None:
        # of float16, where a GPU divides another way
        torch.testing.assert_close(found[1][same], expected[1][same], rtol=2**-10, atol=0)
    weights = torch.ones(weight.shape[1]) if importance is None else importance
    errors = [
        ((encode(weight, scheme, *fitted).dequantize() - weight).square() * weights).sum()
        for fitted in (found, expected)
    ]
    torch.testing.assert_close(*errors, rtol=1e-5, atol=1e-8)


def test_rows_in_chunks_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(37, 64, generator=torch.Generator().manual_seed(0))
    whole = scale_search.mse(weight, parse_scheme("int4-g16-asym"))
    monkeypatch.setitem(scale_search._TRIALS_AT_ONCE, "cpu", 1000)
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
