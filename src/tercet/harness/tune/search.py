"""Tune search: which configurations to race against each other, and in what order."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

Space = Mapping[str, tuple[int, ...]]
Configuration = dict[str, int]
Race = Callable[[Sequence[Configuration]], Configuration | None]

FEW = 32
_FIELD = 8
_DESCENTS = 50


def search(
    space: Space, race: Race, generator: random.Random, spent: Callable[[], bool]
) -> Configuration | None:
    """The fastest right configuration that was found until the time was spent; None without one.

    A small space is run whole, as a tournament. A large one by coordinate descent: along one option
    after another the best value stays, until none changes; then again from a random start. The
    winners of all descents meet at the end: times of different races are not comparable.

    Args:
        space: option -> values.
        race: some configurations to the fastest that is right; None where none is.
        generator: of the order.
        spent: whether the time is up.
    """
    if prod(len(values) for values in space.values()) <= FEW:
        return _tournament(_all(space, generator), race, spent)
    winners = list[Configuration]()
    for _ in range(_DESCENTS):
        if spent():
            break
        winner = _descend(space, race, generator, spent)
        if winner is not None and winner not in winners:
            winners.append(winner)
    return _tournament(winners, race, lambda: False)


def _all(space: Space, generator: random.Random) -> list[Configuration]:
    everything = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    generator.shuffle(everything)
    return everything


def _tournament(
    field: list[Configuration], race: Race, spent: Callable[[], bool]
) -> Configuration | None:
    """Heats of eight; their winners meet until one is left. In no time left, they meet at once."""
    while True:
        winners = list[Configuration]()
        for first in range(0, len(field), _FIELD):
            heat = field[first : first + _FIELD]
            winner = None if spent() and winners else race(heat)
            if winner is not None:
                winners.append(winner)
        if len(winners) <= 1:
            return winners[0] if winners else None
        field = winners


def _descend(
    space: Space, race: Race, generator: random.Random, spent: Callable[[], bool]
) -> Configuration | None:
    here = {option: generator.choice(values) for option, values in space.items()}
    options, best = list(space), None
    generator.shuffle(options)
    at = still = 0
    while still < len(options) and not spent():
        option = options[at % len(options)]
        winner = race([{**here, option: value} for value in space[option]])
        if winner is None:
            return best
        still = still + 1 if winner == here else 0
        here, best, at = winner, winner, at + 1
    return best
