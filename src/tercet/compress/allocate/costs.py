"""Costs: the nats that each choice is expected to add, from what was measured of it.

Single divergences do not add up exactly: errors of layers meet in the layers behind them. Near the
model in whose context they were measured their sum is a first-order expansion, good for choices
that are mostly the context's own, and a guess elsewhere. Whole plans that were carried out and
measured correct it: the ratio of what they gave to the sum, between them by a straight line over
the logarithm of the sum. It changes what is predicted, not which choice is best.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log

import numpy as np

from tercet.compress.allocate.sensitivity_file import Measured, Observed, Sensitivity
from tercet.errors import PlanError

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What each pair costs.

    Attributes:
        nats: KL divergence that the pair adds to the context's; below 0 where it is better.
        context_kl_nats: of the context.
        estimated: how many of them come from the proxy.
        observed: plans that were carried out, which correct predictions.
    """

    nats: Mapping[Pair, float]
    context_kl_nats: float
    estimated: int
    observed: tuple[Observed, ...] = ()

    def sum_of(self, formats: Mapping[str, str]) -> float:
        """What the context and these formats add up to, nats per token; never below 0."""
        return max(self.context_kl_nats + sum(self.nats[pair] for pair in formats.items()), 0.0)

    def predict(self, formats: Mapping[str, str]) -> float:
        """KL divergence of the model with these formats, nats per token."""
        return correct(self.sum_of(formats), self.observed)


def correct(total: float, observed: Iterable[Observed]) -> float:
    """What a plan gives whose choices add up to `total` nats, as plans carried out say."""
    known = sorted((one.sum_nats, one.observed_kl_nats) for one in observed)
    known = [(one, found) for one, found in known if one > 0 and found > 0]
    if not known or total <= 0:
        return total
    sums = [log(one) for one, _ in known]
    ratios = [log(found / one) for one, found in known]
    return total * exp(float(np.interp(log(total), sums, ratios)))


def find_costs(sensitivity: Sensitivity) -> Costs:
    """The cost of every pair: measured, or else the proxy times what it is wrong by.

    Raises:
        PlanError: the file is not whole, or tells nothing of a pair.
    """
    missing = sensitivity.missing
    if missing or sensitivity.context_kl_nats is None:
        raise PlanError(
            f"the sensitivity file is not finished: {len(missing)} of "
            f"{len(missing) + len(sensitivity.lines)} measurements are missing: go on with "
            f"`tercet sensitivity --resume`"
        )
    context = sensitivity.context_kl_nats
    if sensitivity.identity.in_context:
        return _in_context(sensitivity, context)
    factor = _factor(sensitivity.lines.values())
    nats: dict[Pair, float] = {}
    estimated = 0
    for pair, line in sensitivity.lines.items():
        if line.kl_nats is not None:
            nats[pair] = max(line.kl_nats, 0.0)
        elif line.proxy_nats is not None:
            nats[pair] = factor * line.proxy_nats
            estimated += 1
        else:
            raise PlanError(_unknown(line))
    return Costs(
        nats=nats, context_kl_nats=context, estimated=estimated, observed=sensitivity.observed
    )


def _in_context(sensitivity: Sensitivity, context: float) -> Costs:
    nats: dict[Pair, float] = {}
    for pair, line in sensitivity.lines.items():
        if line.kl_nats is None:
            raise PlanError(
                f"{line.module} in {line.format}: its divergence was not measured, and the proxy "
                f"says nothing of a change in the context of a plan: measure without --proxy"
            )
        nats[pair] = line.kl_nats - context
    return Costs(nats=nats, context_kl_nats=context, estimated=0, observed=sensitivity.observed)


def _unknown(line: Measured) -> str:
    return (
        f"{line.module} in {line.format}: neither its divergence nor the proxy is known: measure "
        f"without --proxy"
    )


def _factor(lines: Iterable[Measured]) -> float:
    """The geometric mean of divergence over proxy; 1 where no pair has both."""
    ratios = [
        log(line.kl_nats / line.proxy_nats)
        for line in lines
        if line.kl_nats and line.proxy_nats and line.kl_nats > 0
    ]
    return exp(sum(ratios) / len(ratios)) if ratios else 1.0


def rank_correlation(sensitivity: Sensitivity) -> tuple[float, int] | None:
    """Spearman's correlation of proxy and measured divergence, and of how many pairs.

    None where fewer than three pairs have both.
    """
    both = [
        (line.proxy_nats, line.kl_nats)
        for line in sensitivity.lines.values()
        if line.proxy_nats is not None and line.kl_nats is not None
    ]
    if len(both) < 3:
        return None
    ranks = [_ranks(np.array(both)[:, column]) for column in (0, 1)]
    return float(np.corrcoef(ranks)[0, 1]), len(both)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
