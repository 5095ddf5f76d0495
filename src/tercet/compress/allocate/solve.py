"""solve: the formats that hurt least within a budget of bytes, bits or time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, inf

from tercet.compress.allocate.budget import Size, allocated, measure_size, module_bytes
from tercet.compress.allocate.costs import Costs, find_costs
from tercet.compress.allocate.knapsack import solve_knapsack
from tercet.compress.allocate.latency import Latencies, formats_of
from tercet.compress.allocate.sensitivity_file import Sensitivity
from tercet.errors import PlanError

_PER_US = 1000  # the knapsack's sizes are whole numbers


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How large a checkpoint may be; one of the two.

    Attributes:
        size_bytes: of its weight files, all counted.
        bits: per weight, of the modules that are allocated, scales and zero points counted.
    """

    size_bytes: int | None = None
    bits: float | None = None

    def __post_init__(self) -> None:
        if (self.size_bytes is None) == (self.bits is None):
            raise PlanError("give either --bytes 60MB or --bits 2.6")
        if not 0 < (self.bits or self.size_bytes or 0) < inf:
            raise PlanError("a budget must be a number above 0: give --bytes 60MB or --bits 2.6")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A format for each module.

    Attributes:
        formats: by module.
        sum_nats: what the measurements of its modules add up to.
        predicted_kl_nats: that, corrected by what plans that were carried out gave: KL divergence
            from the uncompressed model, nats per token.
        size: exactly as the checkpoint has it.
        estimated: how many of the costs came from the proxy.
    """

    formats: Mapping[str, str]
    sum_nats: float
    predicted_kl_nats: float
    size: Size
    estimated: int

    def counts(self, sensitivity: Sensitivity) -> dict[str, int]:
        """How many of the allocated modules have each format, the most frequent first."""
        found = Counter(self.formats[name] for name in allocated(sensitivity))
        return dict(found.most_common())


def solve(sensitivity: Sensitivity, budget: Budget) -> Allocation:
    """The choice of least predicted KL divergence within the budget.

    Raises:
        PlanError: no choice fits, with the smallest there is; or the file is not whole.
    """
    costs = find_costs(sensitivity)
    modules = sensitivity.identity.modules
    names = allocated(sensitivity) if budget.bits is not None else list(modules)
    sizes = [[module_bytes(sensitivity, n, form) for form in modules[n].formats] for n in names]
    nats = [[costs.nats[n, form] for form in modules[n].formats] for n in names]
    smallest = _formats(sensitivity, names, [its.index(min(its)) for its in sizes])
    least = measure_size(sensitivity, smallest)
    if budget.bits is not None:
        # a budget as printed is met: 2.6 bits of 10 weights are 26 bits, whatever floats say
        limit = floor(budget.bits * least.weights / 8 + 1e-6)
        picks = solve_knapsack(nats, sizes, limit)
        if picks is None:
            raise _impossible(least, f"{budget.bits:g} bits per weight")
        return _allocation(sensitivity, costs, _formats(sensitivity, names, picks))
    return _within_bytes(sensitivity, costs, sizes, nats, budget.size_bytes or 0, least)


def solve_latency(sensitivity: Sensitivity, latencies: Latencies, limit_us: float) -> Allocation:
    """The choice of least predicted KL divergence whose predicted time is within the limit.

    Args:
        sensitivity: what the formats cost in quality.
        latencies: what they cost in time.
        limit_us: of a token, microseconds.

    Raises:
        PlanError: no choice is fast enough, with the fastest there is; or something was not
            measured.
    """
    costs = find_costs(sensitivity)
    modules, groups = sensitivity.identity.modules, latencies.groups
    choices = [formats_of(group, modules) for group in groups]
    added = [
        [latencies.added(group, form) for form in forms]
        for group, forms in zip(groups, choices, strict=True)
    ]
    nats = [
        [sum(costs.nats[name, form] for name in group) for form in forms]
        for group, forms in zip(groups, choices, strict=True)
    ]
    least = [min(its) for its in added]
    sizes = [
        [round((us - low) * _PER_US) for us in its] for its, low in zip(added, least, strict=True)
    ]
    fastest = latencies.base_us + sum(least)
    # rounded up: a limit of exactly the fastest choice is met by it
    picks = solve_knapsack(nats, sizes, ceil((limit_us - fastest) * _PER_US))
    if picks is None:
        raise PlanError(
            f"a token cannot take {limit_us / 1e3:.4g} ms on {latencies.device}: the fastest "
            f"choice of the measured formats takes {fastest / 1e3:.4g} ms: raise the limit, or "
            f"measure smaller formats"
        )
    selected = {
        name: forms[pick]
        for group, forms, pick in zip(groups, choices, picks, strict=True)
        for name in group
    }
    return _allocation(sensitivity, costs, {name: selected[name] for name in modules})


def _within_bytes(
    sensitivity: Sensitivity,
    costs: Costs,
    sizes: list[list[int]],
    nats: list[list[float]],
    size_bytes: int,
    least: Size,
) -> Allocation:
    """What headers take depends on the choice by some bytes: solved again until it fits."""
    names = list(sensitivity.identity.modules)
    smallest_data = sum(min(its) for its in sizes)
    limit = size_bytes - (least.checkpoint_bytes - smallest_data)
    while True:
        picks = solve_knapsack(nats, sizes, limit)
        if picks is None:
            break
        found = _allocation(sensitivity, costs, _formats(sensitivity, names, picks))
        over = found.size.checkpoint_bytes - size_bytes
        if over <= 0:
            return found
        limit -= over
    if least.checkpoint_bytes <= size_bytes:
        smallest = _formats(sensitivity, names, [its.index(min(its)) for its in sizes])
        return _allocation(sensitivity, costs, smallest)
    raise _impossible(least, f"{size_bytes:,} bytes")


def _impossible(least: Size, budget: str) -> PlanError:
    return PlanError(
        f"{budget} cannot be met by the measured formats: the smallest choice takes "
        f"{least.checkpoint_bytes:,} bytes, {least.bits_per_weight:.3f} bits per weight: raise the "
        f"budget, or measure smaller formats"
    )


def _formats(sensitivity: Sensitivity, names: list[str], picks: list[int]) -> dict[str, str]:
    modules = sensitivity.identity.modules
    found = {name: modules[name].formats[0] for name in modules}
    found |= {name: modules[name].formats[pick] for name, pick in zip(names, picks, strict=True)}
    return found


def _allocation(sensitivity: Sensitivity, costs: Costs, formats: dict[str, str]) -> Allocation:
    return Allocation(
        formats=formats,
        sum_nats=costs.sum_of(formats),
        predicted_kl_nats=costs.predict(formats),
        size=measure_size(sensitivity, formats),
        estimated=costs.estimated,
    )
