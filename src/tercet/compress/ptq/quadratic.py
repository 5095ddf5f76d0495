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

from tercet.compress.ptq.grid import Grid
from tercet.formats import Element

_BLOCK = 64
_SCALES_TO_REFIT = ("float16", "bfloat16", "float32")


def loss(weight: Tensor, quantized: Tensor, gram: Tensor) -> float:
    """tr((W - Q) H (W - Q)^T) for W, Q [N, K] and H [K, K]."""
    error = weight - quantized
    return float(((error @ gram) * error).sum())


def add_damping(gram: Tensor, damping: float) -> Tensor:
    """H + damping * mean(diag H) * I, with columns that never saw an input given a unit diagonal.

    Such columns have no effect on the calibration loss; the diagonal keeps them rounded to nearest.
    """
    gram = gram.float().clone()
    diagonal = gram.diagonal()
    mean = float(diagonal.mean()) if diagonal.numel() else 0.0
    mean = mean if mean > 0 else 1.0
    dead = diagonal <= 0
    diagonal += damping * mean
    diagonal[dead] = mean
    return gram


def round_levels(values: Tensor, element: Element) -> Tensor:
    """The nearest level of each value."""
    if element.integer:
        return values.round().clamp_(element.lowest, element.highest)
    return element.decode(element.encode(values))


def sweep(weight: Tensor, levels: Tensor, grid: Grid, gram: Tensor) -> Tensor:
    """One pass of coordinate descent over all columns: new levels [N, K] of no higher loss.

    Column k moves to the level nearest to Q[:, k] + ((W - Q) H)[:, k] / H[k, k], the minimum with
    all other columns held. The work is done transposed, so that a column is contiguous.

    Args:
        weight: W [N, K], float32.
        levels: the levels to start from [N, K].
        grid: scales and zero points.
        gram: H [K, K], damped.
    """
    element = grid.scheme.element
    scale = grid.scale.T.contiguous()
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    zero = torch.zeros(1).expand_as(scale) if grid.zero is None else grid.zero.T.contiguous()
    levels = levels.T.contiguous()
    quantized = (levels - zero) * scale
    pull = gram @ (weight.T - quantized)
    steps = cast("list[float]", gram.diagonal().reciprocal().tolist())
    for start in range(0, weight.shape[1], _BLOCK):
        end = min(start + _BLOCK, weight.shape[1])
        local_gram, local_pull = gram[start:end, start:end], pull[start:end]
        change = torch.empty_like(local_pull)
        for i in range(end - start):
            column = start + i
            wish = torch.add(quantized[column], local_pull[i], alpha=steps[column])
            level = round_levels(wish.mul_(inverse[column]).add_(zero[column]), element)
            torch.sub((level - zero[column]).mul_(scale[column]), quantized[column], out=change[i])
            levels[column] = level
            local_pull[i + 1 :].addr_(local_gram[i, i + 1 :], change[i], alpha=-1)
        pull[end:].addmm_(gram[end:, start:end], change, alpha=-1)
    return levels.T.contiguous()


def fit_scale(weight: Tensor, basis: Tensor, gram: Tensor, group: int) -> Tensor:
    """The scales [N, G] of least loss for Q = scale * basis, each row solved exactly.

    For row n with basis b_g (zero outside group g): A s = c with A[g, h] = b_g H b_h^T and
    c[g] = b_g H w^T. Negative solutions and empty groups come back as 0.

    Args:
        weight: W [N, K].
        basis: level - zero [N, K].
        gram: H [K, K], damped.
        group: columns in a group; the last group may be shorter.
    """
    rows, columns = weight.shape
    starts = range(0, columns, group)
    pulled = (weight @ gram) * basis
    system = weight.new_zeros(rows, len(starts), len(starts), dtype=torch.float64)
    target = weight.new_zeros(rows, len(starts), dtype=torch.float64)
    for g, start in enumerate(starts):
        part = slice(start, min(start + group, columns))
        target[:, g] = pulled[:, part].sum(1)
        through = (basis[:, part] @ gram[part, start:]) * basis[:, start:]
        for h in range(g, len(starts)):
            there = slice((h - g) * group, min((h - g + 1) * group, columns - start))
            system[:, g, h] = system[:, h, g] = through[:, there].sum(1)
    diagonal = system.diagonal(dim1=1, dim2=2)
    diagonal += 1e-9 * diagonal.mean(1, keepdim=True) + torch.finfo(torch.float64).tiny
    solved = cast(Tensor, torch.linalg.solve(system, target[..., None])[..., 0])
    return solved.to(weight.dtype).clamp_min_(0).nan_to_num_(0.0, 0.0, 0.0)


def refine(
    weight: Tensor, levels: Tensor, grid: Grid, gram: Tensor, rounds: int, name: str
) -> tuple[Tensor, Grid]:
    """Up to `rounds` of exact scale fitting and one sweep; a round that does not help is undone.

    Rounding the fitted scales to their stored dtype can raise the loss, hence the comparison.
    """
    best = loss(weight, grid.values(levels), gram)
    for _ in range(rounds):
        trial = grid
        group = grid.group
        if group is not None and grid.scheme.scaling.dtype in _SCALES_TO_REFIT:
            basis = levels if grid.zero is None else levels - grid.zero
            scale = fit_scale(weight, basis, gram, group)
            # a group whose levels are all zero has no scale to fit: it keeps the one it had
            scale = torch.where(scale > 0, scale, grid.stored.float())
            zero = grid.stored_zero
            trial = Grid.of(
                grid.scheme, grid.shape, scale, None if zero is None else zero.float(), name
            )
        swept = sweep(weight, levels, trial, gram)
        found = loss(weight, trial.values(swept), gram)
        if found >= best:
            break
        levels, grid, best = swept, trial, found
    return levels, grid
