"""The quadratic objective and its half-steps against brute force, least squares and by hand."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.compress.ptq import quadratic
from tercet.compress.ptq.grid import Grid
from tercet.compress.ptq.native.columns import round_levels
from tercet.formats import fit, parse_scheme
from tercet.formats.element import ELEMENTS


def problem(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """W [N, K] and a correlated, well-conditioned H [K, K]."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    mix = torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(8 * columns, columns, generator=generator) @ mix
    return weight, quadratic.add_damping(inputs.T @ inputs / len(inputs), 0.05)


def grid_of(weight: Tensor, name: str) -> Grid:
    scheme = parse_scheme(name)
    return Grid.of(scheme, (weight.shape[0], weight.shape[1]), *fit(weight, scheme, "mse"), "w")


def best_levels(weight: Tensor, grid: Grid, gram: Tensor) -> Tensor:
    """Exhaustive: the least loss of every row over all choices of levels [N]."""
    choices = torch.tensor(
        list(product(sorted(set(grid.scheme.element.levels)), repeat=weight.shape[1]))
    )
    losses: list[Tensor] = []
    for row in range(weight.shape[0]):
        zero = 0 if grid.zero is None else grid.zero[row]
        error = weight[row] - (choices - zero) * grid.scale[row]
        losses.append(((error @ gram) * error).sum(1).min())
    return torch.stack(losses)


def test_loss_is_the_squared_output_error() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(50, 6, generator=generator)
    weight, other = torch.randn(2, 3, 6, generator=generator).unbind()
    outputs = inputs @ weight.T - inputs @ other.T
    gram = inputs.T @ inputs / 50
    assert quadratic.loss(weight, other, gram) == pytest.approx(
        float(outputs.square().sum(1).mean()), rel=1e-5
    )
    assert quadratic.loss(weight, weight, gram) == 0


def test_damping_by_hand() -> None:
    gram = torch.tensor([[3.0, 1.0, 0.0], [1.0, 6.0, 0.0], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[3.3, 1.0, 0.0], [1.0, 6.3, 0.0], [0.0, 0.0, 3.0]])
    torch.testing.assert_close(quadratic.add_damping(gram, 0.1), expected)
    assert gram[0, 0] == 3
    assert torch.equal(quadratic.add_damping(torch.zeros(2, 2), 0.1), torch.eye(2))
    assert quadratic.add_damping(torch.zeros(0, 0), 0.1).shape == (0, 0)


@pytest.mark.parametrize("name", ["ternary", "nonary", "int4", "fp4_e2m1", "fp8_e4m3"])
def test_round_levels_is_nearest(name: str) -> None:
    element = ELEMENTS[name]
    levels = torch.tensor(sorted({level for level in element.levels if level == level}))
    values = torch.randn(500, generator=torch.Generator().manual_seed(0)) * levels.max()
    found = round_levels(values.clone(), element)
    distance = (values[:, None] - levels).abs().amin(1)
    torch.testing.assert_close((found - values).abs(), distance)


@settings(max_examples=40, deadline=None)
@given(
    columns=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["ternary-g2", "ternary-channel", "int2-g3-asym"]),
)
def test_sweeps_reach_a_coordinatewise_minimum(columns: int, seed: int, name: str) -> None:
    weight, gram = problem(2, columns, seed)
    grid = grid_of(weight, name)
    levels = grid.nearest(weight)
    before = quadratic.loss(weight, grid.values(levels), gram)
    for _ in range(30):
        swept = quadratic.sweep(weight, levels, grid, gram)
        after = quadratic.loss(weight, grid.values(swept), gram)
        assert after <= before * (1 + 1e-5) + 1e-6
        if torch.equal(swept, levels):
            break
        levels, before = swept, after
    else:
        raise AssertionError("coordinate descent did not settle")
    assert before >= float(best_levels(weight, grid, gram).sum()) * (1 - 1e-5) - 1e-6
    for column in range(columns):
        for level in grid.scheme.element.levels:
            moved = levels.clone()
            moved[:, column] = level
            per_row = row_losses(weight, grid.values(moved), gram)
            assert (per_row >= row_losses(weight, grid.values(levels), gram) - 1e-4).all()


def row_losses(weight: Tensor, quantized: Tensor, gram: Tensor) -> Tensor:
    error = weight - quantized
    return ((error @ gram) * error).sum(1)


def test_sweep_across_blocks_is_the_plain_loop() -> None:
    weight, gram = problem(3, 150)
    grid = grid_of(weight, "int3-g32")
    start = grid.nearest(weight)
    levels, w, h = start.double(), weight.double(), gram.double()
    scale = grid.scale.double()
    for k in range(150):
        quantized = levels * scale
        wish = quantized[:, k] + ((w - quantized) @ h)[:, k] / h[k, k]
        levels[:, k] = (wish / scale[:, k]).round().clamp(-4, 3)
    found = quadratic.sweep(weight, start, grid, gram)
    assert (found.double() != levels).float().mean() < 0.01
    assert quadratic.loss(weight, grid.values(found), gram) == pytest.approx(
        quadratic.loss(weight, grid.values(levels.float()), gram), rel=1e-3
    )


@pytest.mark.parametrize("group", [2, 4, 7])
def test_fit_scale_is_least_squares(group: int) -> None:
    weight, gram = problem(5, 7)
    # levels of the weights' own signs, so that no solution is negative and none is clamped
    basis = (weight.sign() * torch.tensor([1, 2, 3, 1, 2, 1, 3])).double()
    found = quadratic.fit_scale(weight.double(), basis, gram.double(), group)
    root = torch.linalg.cholesky(gram.double())
    for row in range(5):
        columns = [basis[row].clone() for _ in range(0, 7, group)]
        for g, column in enumerate(columns):
            column[: g * group] = 0
            column[(g + 1) * group :] = 0
        solved = torch.linalg.lstsq(
            root.T @ torch.stack(columns, 1), root.T @ weight[row].double()[:, None]
        )
        expected = solved.solution[:, 0].clamp_min(0)
        torch.testing.assert_close(found[row], expected, atol=1e-6, rtol=1e-6)


def test_fit_scale_of_empty_and_opposed_groups_is_zero() -> None:
    weight = torch.tensor([[1.0, 1.0, 2.0, 2.0]])
    basis = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    assert quadratic.fit_scale(weight, basis, torch.eye(4), 2).tolist() == [[0, 2]]
    assert quadratic.fit_scale(weight, -basis, torch.eye(4), 2).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "name", ["ternary-g16", "nonary-channel", "int4-g16-asym", "mxfp4", "nvfp4", "int3-tensor"]
)
@pytest.mark.parametrize("seed", range(3))
def test_refine_never_raises_the_loss(name: str, seed: int) -> None:
    weight, gram = problem(8, 80, seed)
    grid = grid_of(weight, name)
    levels = grid.nearest(weight)
    losses = [quadratic.loss(weight, grid.values(levels), gram)]
    for rounds in range(5):
        better, refined = quadratic.refine(weight, levels, grid, gram, rounds, "w")
        losses.append(quadratic.loss(weight, refined.values(better), gram))
        packed = refined.pack(better)
        packed.validate()
        torch.testing.assert_close(packed.dequantize(), refined.values(better))
    assert losses == sorted(losses, reverse=True)
    assert losses[1] == losses[0]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("columns", [0, 1, 7, 40])
@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_factors_and_solutions_by_blocks(columns: int, size: int) -> None:
    """As a GPU makes them, whichever way the matrix lies."""
    mixed = torch.randn(columns, columns, generator=torch.Generator().manual_seed(1)).double()
    gram = mixed @ mixed.T + torch.eye(columns).double()
    expected = torch.linalg.cholesky(gram)
    for matrix in (gram.clone(), gram.clone().T):
        found = quadratic.factorize_by_blocks(matrix, size)
        assert found is matrix
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
        right = mixed[:, :3].clone()
        quadratic.solve_upper_(found, quadratic.solve_lower_(found, right, size), size)
        solved = torch.cholesky_solve(mixed[:, :3], expected)
        torch.testing.assert_close(right, solved, atol=1e-11, rtol=1e-11)
