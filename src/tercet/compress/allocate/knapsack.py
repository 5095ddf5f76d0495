"""The multiple-choice knapsack: one choice of each group, least cost, total size within a limit.

    minimize    sum_g sum_c cost[g, c] x[g, c]
    such that   sum_c x[g, c] = 1 for each group g,   sum size[g, c] x[g, c] <= limit,   x in {0, 1}

Solved by HiGHS through scipy.optimize.milp: to optimality where there are few choices, else to
within a thousandth of the best cost, since proving the last digits of hundreds of groups takes
minutes and costs are measured to a few per cent.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

# HiGHS stops at an absolute gap of 1e-6: costs are scaled until that is nothing
_LARGEST_COST = 1e4
_FEW_CHOICES = 64
_RELATIVE_GAP = 1e-3


def solve_knapsack(
    costs: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], limit: int
) -> list[int] | None:
    """The choice of each group; None where no choice of all fits.

    Args:
        costs: of each group's choices, finite.
        sizes: likewise, whole numbers, not negative.
        limit: of the total size.
    """
    # takes a third of a second, and only this needs it
    from scipy import optimize, sparse

    groups = [group for group, its in enumerate(costs) for _ in its]
    cost = np.array([value for its in costs for value in its], dtype=np.float64)
    size = np.array([value for its in sizes for value in its], dtype=np.int64)
    starts = np.cumsum([0, *(len(its) for its in costs)])
    least = int(sum(min(its) for its in sizes))
    if least > limit:
        return None
    each = sparse.csr_matrix(
        (np.ones(len(cost)), (groups, np.arange(len(cost)))), shape=(len(costs), len(cost))
    )
    span = float(np.abs(cost).max()) or 1.0
    unit = float(size.max()) or 1.0
    milp: Any = cast(Any, optimize).milp
    while True:
        found = milp(
            cost / span * _LARGEST_COST,
            integrality=np.ones(len(cost)),
            bounds=cast(Any, optimize).Bounds(0, 1),
            constraints=[
                cast(Any, optimize).LinearConstraint(each, 1, 1),
                cast(Any, optimize).LinearConstraint(size[None] / unit, -np.inf, limit / unit),
            ],
            options={"mip_rel_gap": 0.0 if len(cost) <= _FEW_CHOICES else _RELATIVE_GAP},
        )
        if found.x is None:
            # sizes differ by more than its tolerance; the smallest of each are within the limit
            return [
                min(range(len(its)), key=lambda at: (its[at], of[at]))
                for its, of in zip(sizes, costs, strict=True)
            ]
        picks = [int(np.argmax(found.x[a:b])) for a, b in pairwise(starts)]
        over = sum(its[pick] for its, pick in zip(sizes, picks, strict=True)) - limit
        if over <= 0:
            return picks
        # its tolerance lets a total through that is a little above the limit
        limit -= over
