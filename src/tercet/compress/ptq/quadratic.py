"""The layer-wise objective that post-training quantization minimizes, and its two half-steps.

For a linear layer with inputs x and H = E[x x^T] (the Gram matrix [K, K]), replacing W [N, K] by Q
costs, summed over rows, the squared output error

    loss(Q) = tr((W - Q) H (W - Q)^T)

With Q = (level - zero) * scale per group, the loss is quadratic in the scales for fixed levels
(solved exactly, row by row: `fit_scale`) and, for fixed scales, is lowered by revisiting one column
at a time (`sweep`; coordinate descent as in QuantEase, arXiv:2309.01885). `refine` alternates both.
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from tercet.compress.calibration.products import tensor_core_products, upper_bits
from tercet.compress.ptq.grid import Grid
from tercet.compress.ptq.native.columns import Columns, in_blocks, sweep_block

# rows or columns of a matrix that a GPU factorizes at a time, and rows that it solves: what it
# solves is slow, the products before it need enough to do
FACTORED_AT_ONCE = 2048
_SOLVED_AT_ONCE = 1024

SCALES_TO_REFIT = ("float16", "bfloat16", "float32")


def loss(weight: Tensor, quantized: Tensor, gram: Tensor) -> float:
    """tr((W - Q) H (W - Q)^T) for W, Q [N, K] and H [K, K]."""
    error = weight - quantized
    return float(((error @ gram) * error).sum())


def add_damping(gram: Tensor, damping: float) -> Tensor:
    """H + damping * mean(diag H) * I, with columns that never saw an input given a unit diagonal.

    Such columns have no effect on the calibration loss; the diagonal keeps them rounded to nearest.
    """
    return add_damping_(gram.float().clone(), damping)


def add_damping_(gram: Tensor, damping: float) -> Tensor:
    """`add_damping` in the place of H, whose diagonal alone changes."""
    diagonal = gram.diagonal()
    mean = float(diagonal.mean()) if diagonal.numel() else 0.0
    mean = mean if mean > 0 else 1.0
    dead = diagonal <= 0
    diagonal += damping * mean
    diagonal[dead] = mean
    return gram


def factorize(matrix: Tensor) -> Tensor:
    """L, lower triangular, with L L^T = H, for a positive definite H [K, K], in the place of H.

    On a CPU H lies column by column, as LAPACK has it.
    """
    if matrix.device.type == "cpu":
        torch.linalg.cholesky(matrix, out=matrix)
        return matrix
    return factorize_by_blocks(matrix, FACTORED_AT_ONCE)


def factorize_by_blocks(matrix: Tensor, size: int) -> Tensor:
    """As `factorize`, `size` columns at a time, so that nothing else of H's size is held."""
    for first in range(0, len(matrix), size):
        block, rest = slice(first, first + size), slice(first + size, None)
        own = cast(Tensor, torch.linalg.cholesky(matrix[block, block]))
        matrix[block, block] = own
        below = matrix[rest, block]
        if not len(below):
            continue
        # L^T: L own^T = H there
        solved = cast(Tensor, torch.linalg.solve_triangular(own, below.mT, upper=False))
        below.copy_(solved.mT)
        for start in range(0, solved.shape[1], size):
            columns = solved[:, start : start + size]
            left = matrix[rest, rest][start:, start : start + size]
            left.addmm_(solved[:, start:].mT, columns, alpha=-1)
    return matrix.tril_()


def solve_lower_(lower: Tensor, right: Tensor, size: int) -> Tensor:
    """L^-1 R in the place of R [K, M], `size` rows at a time: torch would copy L [K, K] first."""
    for start in range(0, len(lower), size):
        rows, known = slice(start, start + size), slice(0, start)
        own, here = lower[rows, rows], right[rows]
        here.addmm_(lower[rows, known], right[known], alpha=-1)
        here.copy_(cast(Tensor, torch.linalg.solve_triangular(own, here, upper=False)))
    return right


def solve_upper_(lower: Tensor, right: Tensor, size: int) -> Tensor:
    """L^-T R, likewise."""
    for start in reversed(range(0, len(lower), size)):
        rows, known = slice(start, start + size), slice(start + size, None)
        own, here = lower[rows, rows], right[rows]
        here.addmm_(lower[known, rows].mT, right[known], alpha=-1)
        here.copy_(cast(Tensor, torch.linalg.solve_triangular(own.mT, here, upper=True)))
    return right


def solve_factored(lower: Tensor, right: Tensor) -> Tensor:
    """H^-1 R for R [K, M], which may be lost, with L L^T = H as `factorize` gives it."""
    if lower.device.type == "cpu":
        return torch.cholesky_solve(right, lower)
    solve_lower_(lower, right, _SOLVED_AT_ONCE)
    return solve_upper_(lower, right, _SOLVED_AT_ONCE)


def inverse_columns(lower: Tensor, first: int, last: int) -> Tensor:
    """Columns [first, last) of L^-1 from row `first` on, above which is nothing."""
    columns = lower.new_zeros(len(lower) - first, last - first)
    columns.diagonal().fill_(1)
    size = len(lower) if lower.device.type == "cpu" else _SOLVED_AT_ONCE
    return solve_lower_(lower[first:, first:], columns, size)


def sweep(weight: Tensor, levels: Tensor, grid: Grid, gram: Tensor) -> Tensor:
    """One pass of coordinate descent over all columns: new levels [N, K] of no higher loss.

    Column k moves to the level nearest to Q[:, k] + ((W - Q) H)[:, k] / H[k, k], the minimum with
    all other columns held.

    Args:
        weight: W [N, K], float32.
        levels: the levels to start from [N, K].
        grid: scales and zero points.
        gram: H [K, K], damped.
    """
    pulled = gram @ weight.T
    return _sweep(weight.T.contiguous(), levels.T.contiguous(), Columns.of(grid), gram, pulled)[0].T


def _sweep(
    weight: Tensor, levels: Tensor, columns: Columns, gram: Tensor, pulled: Tensor
) -> tuple[Tensor, float]:
    """`sweep` on transposed matrices [K, N]: new levels, and the loss under them.

    Args:
        weight, levels: W^T and the levels to start from.
        columns: their grid.
        gram: H [K, K], damped.
        pulled: H W^T.
    """
    quantized = columns.values(levels)
    slope = torch.addmm(pulled, gram, quantized, alpha=-1)
    after = (slope * (weight - quantized)).sum(dtype=torch.float64)
    pivot = gram.diagonal().reciprocal()
    swept = torch.empty_like(levels)
    for part, change in in_blocks(slope, gram):
        after -= sweep_block(
            quantized[part],
            slope[part],
            columns.slice(part),
            gram[part, part],
            pivot[part],
            swept[part],
            change,
        )
    return swept, float(after)


def fit_scale(
    weight: Tensor, basis: Tensor, gram: Tensor, group: int, pulled: Tensor | None = None
) -> Tensor:
    """The scales [N, G] of least loss for Q = scale * basis, each row solved exactly.

    For row n with basis b_g (zero outside group g): A s = c with A[g, h] = b_g H b_h^T and
    c[g] = b_g H w^T. Negative solutions and empty groups come back as 0.

    Args:
        weight: W [N, K].
        basis: level - zero [N, K].
        gram: H [K, K], damped.
        group: columns in a group; the last group may be shorter.
        pulled: H W^T [K, N], where it is known already.
    """
    basis = basis.T.contiguous()
    pulled = gram @ weight.T if pulled is None else pulled
    target = _sum_groups(pulled * basis, group)
    system = _multiply_groups(gram, basis, group)
    diagonal = system.diagonal(dim1=1, dim2=2)
    diagonal += 1e-9 * diagonal.mean(1, keepdim=True) + torch.finfo(torch.float64).tiny
    factor, failed = cast("tuple[Tensor, Tensor]", torch.linalg.cholesky_ex(system))
    solved = torch.cholesky_solve(target.T[..., None].double(), factor)[..., 0]
    solved[failed > 0] = 0
    return solved.to(weight.dtype).clamp_min_(0).nan_to_num_(0.0, 0.0, 0.0)


def _multiply_groups(gram: Tensor, basis: Tensor, group: int) -> Tensor:
    """b_g H b_h^T [N, G, G], float64, for the transposed basis [K, N]; of h <= g alone."""
    if gram.device.type == "cuda" and gram.dtype == torch.float32:
        # imported here: a CPU needs none of it
        from tercet.compress.ptq.native.group_products_triton import GROUPS, group_products

        narrow = basis.bfloat16()
        if group in GROUPS and bool((narrow == basis).all()):
            return group_products(gram.contiguous(), narrow, group)
    columns, rows = basis.shape
    starts = range(0, columns, group)
    system = gram.new_zeros(len(starts), len(starts), rows, dtype=torch.float64)
    for g, start in enumerate(starts):
        part = slice(start, start + group)
        through = _times_integers(gram[start:, part], basis[part]).mul_(basis[start:])
        system[g:, g] = _sum_groups(through, group).double()
    return system.permute(2, 0, 1).contiguous()


def _times_integers(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, where right has few bits and left all 24, of which tensor cores take 11."""
    if left.device.type == "cpu":
        return left @ right
    # what is cut off, as the rest of it, has 13 bits: the last two are lost to rounding at most
    high = upper_bits(left)
    return (high @ right).addmm_(left - high, right)


def _sum_groups(values: Tensor, group: int) -> Tensor:
    """Sums [G, N] over runs of `group` rows of values [K, N]; the last run may be shorter."""
    columns, rows = values.shape
    padded = pad(values, (0, 0, 0, -columns % group)) if columns % group else values
    return padded.reshape(-(-columns // group), group, rows).sum(1)


@tensor_core_products()
def refine(
    weight: Tensor, levels: Tensor, grid: Grid, gram: Tensor, rounds: int, name: str
) -> tuple[Tensor, Grid]:
    """Up to `rounds` of exact scale fitting and one sweep; a round that does not help is undone.

    Rounding the fitted scales to their stored dtype can raise the loss, hence the comparison.
    """
    if not rounds:
        return levels, grid
    columns, upright = Columns.of(grid), weight.T.contiguous()
    pulled = gram @ upright
    error = upright - columns.values(levels.T)
    best = float(((gram @ error) * error).sum(dtype=torch.float64))
    for _ in range(rounds):
        trial = _refit(weight, levels, grid, gram, pulled, name)
        columns = Columns.of(trial) if trial is not grid else columns
        swept, found = _sweep(upright, levels.T.contiguous(), columns, gram, pulled)
        if found >= best:
            break
        levels, grid, best = swept.T, trial, found
    return levels, grid


def _refit(
    weight: Tensor, levels: Tensor, grid: Grid, gram: Tensor, pulled: Tensor, name: str
) -> Grid:
    """The grid with the scales of least loss; the same grid where its scales are not refitted."""
    group = grid.group
    if group is None or grid.scheme.scaling.dtype not in SCALES_TO_REFIT:
        return grid
    basis = levels if grid.zero is None else levels - grid.zero
    scale = fit_scale(weight, basis, gram, group, pulled)
    # a group whose levels are all zero has no scale to fit: it keeps the one it had
    scale = torch.where(scale > 0, scale, grid.stored.float())
    zero = grid.stored_zero
    return Grid.of(grid.scheme, grid.shape, scale, None if zero is None else zero.float(), name)
