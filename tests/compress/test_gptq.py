"""GPTQ against the textbook loop in float64, against brute force, and against round-to-nearest."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.compress.algorithm import Statistics
from tercet.compress.ptq import gptq, quadratic, row_blocks, rtn
from tercet.compress.ptq.grid import Grid
from tercet.errors import FormatError
from tercet.formats import fit, parse_scheme


def problem(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """W [N, K] and the Gram matrix [K, K] of correlated inputs."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * 0.05
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5
    channels = torch.randn(columns, generator=generator).exp()
    inputs = torch.randn(8 * columns, columns, generator=generator) @ (mix + torch.eye(columns))
    inputs = inputs * channels
    return weight, inputs.T @ inputs / len(inputs)


def loss_of(weight: Tensor, gram: Tensor, name: str, **options: object) -> float:
    packed = gptq.quantize(weight, gram, parse_scheme(name), gptq.Options(**options))
    return quadratic.loss(weight, packed.dequantize(), quadratic.add_damping(gram, 0.05))


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_inverse_factor(columns: int) -> None:
    _, gram = problem(1, columns)
    gram = quadratic.add_damping(gram, 0.05).double()
    factor = gptq.inverse_factor(gram)
    assert torch.equal(factor, factor.triu())
    identity = factor.T @ factor @ gram
    torch.testing.assert_close(identity, torch.eye(columns).double(), atol=1e-9, rtol=1e-9)
    assert gptq.inverse_factor(gram[:0, :0]).shape == (0, 0)


def textbook(weight: Tensor, grid: Grid, gram: Tensor) -> Tensor:
    """Algorithm 1 of arXiv:2210.17323 with blocks of one column, in float64: levels [N, K]."""
    element = grid.scheme.element
    inverse = torch.linalg.inv(gram.double())
    factor = torch.linalg.cholesky(inverse, upper=True)
    rest, scale = weight.double().clone(), grid.scale.double()
    zero = torch.zeros_like(scale) if grid.zero is None else grid.zero.double()
    levels = torch.zeros_like(rest)
    table = torch.tensor(sorted({level for level in element.levels if level == level}))
    for i in range(weight.shape[1]):
        wanted = rest[:, i] / scale[:, i] + zero[:, i]
        levels[:, i] = table[(wanted[:, None] - table).abs().argmin(1)]
        rounded = (levels[:, i] - zero[:, i]) * scale[:, i]
        error = (rest[:, i] - rounded) / factor[i, i]
        rest[:, i + 1 :] -= error[:, None] * factor[i, i + 1 :]
    return levels


@pytest.mark.parametrize("columns", [5, 64, 150])
@pytest.mark.parametrize("name", ["ternary-g32", "int4-g32", "int4-g32-asym", "mxfp4"])
def test_spread_is_the_textbook_loop(name: str, columns: int) -> None:
    weight, gram = problem(6, columns)
    gram = quadratic.add_damping(gram, 0.05).double()
    scheme = parse_scheme(name)
    grid = Grid.of(scheme, (6, columns), *fit(weight, scheme, "absmax"), "w")
    found = gptq.spread(
        weight.double(), grid, gptq.inverse_factor(gram), torch.arange(columns)
    ).double()
    expected = textbook(weight, grid, gram)
    # scales are float32 inside, so a value on the very border may fall to either side
    assert (found != expected).double().mean() < 0.003


def test_processing_order_undoes_its_permutation() -> None:
    weight, gram = problem(4, 70)
    gram = quadratic.add_damping(gram, 0.05)
    scheme = parse_scheme("int4-channel")
    grid = Grid.of(scheme, (4, 70), *fit(weight, scheme, "absmax"), "w")
    order = torch.randperm(70, generator=torch.Generator().manual_seed(0))
    found = gptq.spread(weight, grid, gptq.inverse_factor(gram[order][:, order]), order)
    shuffled = gptq.spread(
        weight[:, order],
        grid,
        gptq.inverse_factor(gram[order][:, order]),
        torch.arange(70),
    )
    assert torch.equal(found[:, order], shuffled)


def test_with_uncorrelated_inputs_it_is_round_to_nearest() -> None:
    weight, _ = problem(5, 48)
    options = gptq.Options(search_scale=False, refine=0)
    packed = gptq.quantize(weight, torch.eye(48), parse_scheme("int4-g16"), options)
    expected = rtn.quantize(weight, parse_scheme("int4-g16"), fit="absmax")
    assert torch.equal(packed.dequantize(), expected.dequantize())


@settings(max_examples=30, deadline=None)
@given(columns=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_it_comes_near_the_exhaustive_optimum(columns: int, seed: int) -> None:
    weight, gram = problem(4, columns, seed)
    scheme = parse_scheme("ternary-channel-float32")
    packed = gptq.quantize(weight, gram, scheme, gptq.Options())
    gram = quadratic.add_damping(gram, 0.05)
    choices = torch.tensor(list(product((-1.0, 0.0, 1.0), repeat=columns)))
    for row in range(4):
        error = weight[row] - choices * packed.scale[row].float()
        best = float(((error @ gram) * error).sum(1).min())
        own = quadratic.loss(weight[row : row + 1], packed.dequantize()[row : row + 1], gram)
        zero = quadratic.loss(weight[row : row + 1], torch.zeros(1, columns), gram)
        assert best - 1e-6 <= own <= 2 * best + 0.25 * zero


@pytest.mark.parametrize(
    "name", ["ternary-g32", "nonary-g32", "int4-g32", "int3-g32-asym", "mxfp4"]
)
def test_it_beats_rtn_and_refining_beats_it(name: str) -> None:
    weight, gram = problem(32, 128)
    plain = rtn.quantize(weight, parse_scheme(name)).dequantize()
    baseline = quadratic.loss(weight, plain, quadratic.add_damping(gram, 0.05))
    unrefined = loss_of(weight, gram, name, refine=0)
    refined = loss_of(weight, gram, name, refine=6)
    assert refined < unrefined < 0.85 * baseline


def test_activation_order_helps_on_uneven_channels() -> None:
    weight, gram = problem(32, 128)
    ordered, unordered = (
        loss_of(weight, gram, "int3-g32", refine=0, activation_order=given)
        for given in (True, False)
    )
    assert ordered < unordered


@pytest.mark.parametrize("name", ["ternary-g16", "int4-g16-asym", "mxfp4", "int8-channel"])
def test_dead_columns_and_zero_groups(name: str) -> None:
    weight, gram = problem(4, 64)
    gram[10], gram[:, 10] = 0, 0
    weight[:, 32:64] = 0
    weight[1] = 0
    packed = gptq.quantize(weight, gram, parse_scheme(name), gptq.Options())
    packed.validate()
    found = packed.dequantize()
    assert torch.equal(found[1], torch.zeros(64))
    # a column that never saw an input is rounded to nearest under the scale of its group
    step = packed.scale.float().max() * (1 if "fp4" not in name else 2)
    assert (found[:, 10] - weight[:, 10]).abs().max() <= 3 * step


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 65), (0, 4), (3, 0)])
@pytest.mark.parametrize("name", ["ternary", "int4-asym", "mxfp4", "int8-tensor"])
def test_degenerate_shapes_and_no_inputs(shape: tuple[int, int], name: str) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    packed = gptq.quantize(
        weight, torch.zeros(shape[1], shape[1]), parse_scheme(name), gptq.Options()
    )
    packed.validate()
    assert packed.dequantize().shape == shape
    if weight.numel() and name != "ternary":
        assert (packed.dequantize() - weight).norm() < 0.35 * weight.norm()


def test_a_broken_weight_is_named() -> None:
    weight = torch.ones(2, 4)
    weight[1, 2] = torch.inf
    statistics = Statistics(gram=torch.eye(4), absmax=torch.ones(4), absmean=torch.ones(4))
    with pytest.raises(FormatError, match=r"blk\.1: 1 of 8 values are NaN or inf.*\[1, 2\]"):
        gptq.ALGORITHM.quantize({"blk.1": weight}, statistics, parse_scheme("int4"), gptq.Options())


@pytest.mark.parametrize("name", ["int4-g32", "ternary-channel", "int3-g32-asym", "int8-tensor"])
def test_a_large_weight_in_blocks_of_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, gram = problem(50, 64)
    whole = gptq.quantize(weight, gram, parse_scheme(name), gptq.Options(refine=0))
    monkeypatch.setitem(row_blocks.WEIGHTS_AT_ONCE, "cpu", 64 * 7)
    found = gptq.quantize(weight, gram, parse_scheme(name), gptq.Options(refine=0))
    found.validate()
    assert torch.equal(found.scale, whole.scale)
    # products of fewer rows are summed in another order
    assert (found.dequantize() != whole.dequantize()).float().mean() < 0.01
    refined = gptq.quantize(weight, gram, parse_scheme(name), gptq.Options())
    damped = quadratic.add_damping(gram, 0.05)
    losses = [quadratic.loss(weight, one.dequantize(), damped) for one in (refined, found)]
    assert losses[0] < losses[1]


def test_statistics_are_as_they_were_afterwards() -> None:
    """GPTQ damps H where it lies, and others may read the same statistics."""
    weight, gram = problem(8, 32)
    ones = torch.ones(32)
    statistics = Statistics(gram=gram.clone(), absmax=ones, absmean=ones)
    options = gptq.Options()
    found = gptq.ALGORITHM.quantize({"w": weight}, statistics, parse_scheme("int4-g16"), options)
    assert torch.equal(statistics.gram, gram)
    alone = gptq.quantize(weight, gram, parse_scheme("int4-g16"), options)
    assert torch.equal(found["w"].packed.dequantize(), alone.dequantize())
