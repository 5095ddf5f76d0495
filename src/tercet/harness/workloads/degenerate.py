"""Degenerate: drawn cases that every check has, of what shortcuts are taken for.

Numbers that add up to 0, ones, rows that are alike at both ends, options of 0 where the numbers are
0 too, special values that meet, inputs of equal sizes, one element along an axis. What else they
have is drawn from the seed, as in `draw`.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, permutations
from math import inf

from torch import Tensor

from tercet.harness.workloads.allowed import allowed
from tercet.harness.workloads.draw import draw_one
from tercet.harness.workloads.drawn import FLOATS, Drawn
from tercet.harness.workloads.forms import MEETING
from tercet.harness.workloads.limits import (
    bases_of,
    fits,
    free_floats,
    kinds_of,
    largest_sizes,
    single_options,
    takes_kinds,
)
from tercet.harness.workloads.systematic import End, draw_each
from tercet.kernel.contract import Op, TensorSpec

_TRIES = 12
# rows in which each pair of special values comes once
_ROWS = (len(MEETING), 33, 40, 65)
_FEW = (1, 2)
_COLUMNS = (8, 16, 31, 64, 130)
# of the cases' options, where all axes are 1; and of the cases, those with an option
_OPTIONS, _SINGLE = 3, 0.5
# of axes where inputs are alike: a softmax of one is the same whatever it is of; and of what is
# alike at both ends
_LEAST = 3
_THREE, _ALIKE = (3, 4, 5, 8), 6  # and of cases with an option


def draw_forms(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases whose contents look like nothing: see FORMS; or are 0 by an option of 0.

    Inputs one by one, and two of them, one all ones and the other one adding up to 0.

    Args:
        op, seed, count, elements, rows: as draw.
    """
    return draw_each(op, random.Random(f"forms of {seed}"), count, elements, rows, _forms)


def draw_meeting(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Special values that meet: in the first input alone, and in it and another of its columns.

    Of ops that take infinities and NaN; with none of the cases' options, and with one.

    Args:
        op, seed, elements, rows: as draw.
    """
    first, interpreted = op.of_role("input")[0], rows is not None
    if not takes_kinds(op) or not first.dtypes[0].is_floating_point:
        return ()
    found, generator = list[Drawn](), random.Random(f"meeting of {seed}")
    for other in op.of_role("input"):
        if other.axes not in (first.axes, first.axes[-1:]):
            continue
        wanted = {first.axes[0]: _ROWS, first.axes[-1]: _COLUMNS}
        if interpreted:
            # each program takes its time
            wanted = dict.fromkeys((axis.name for axis in op.axes), _FEW) | wanted
        for single in (generator.random() < _SINGLE,) if interpreted else (False, True):
            for one in _tries(op, generator, elements, rows, wanted, single=single):
                if not {"inf", "nan"} <= set(kinds_of(op, one.workload.dtype)):
                    continue
                arguments = one.arguments(op, 0)
                value = arguments.get(other.name)
                if not isinstance(value, Tensor) or value.dtype not in FLOATS:
                    continue
                meeting = replace(one, meeting=(first.name, other.name), gradient=False)
                if (kept := allowed(op, meeting)) is not None:
                    found.append(kept)
                    break
    return tuple(found)


def draw_alike(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Inputs whose first and last entry along the leading axis are alike, others are not.

    One by one, all but the first, and all of them; with an axis more, where options give one.

    Args:
        op, seed, elements, rows: as draw.
    """
    generator, found = random.Random(f"alike of {seed}"), dict[End, Drawn]()
    wanted = dict.fromkeys(op.of_role("input")[0].axes[:1], _THREE)
    for single in (False, *[True] * (_ALIKE if rows is None else 1)):
        for one in _tries(op, generator, elements, rows, wanted, single=single):
            alike = {end: each for end, each in _alike(op, one) if end not in found}
            kept = {end: allowed(op, each) for end, each in alike.items()}
            found |= {end: each for end, each in kept.items() if each is not None}
            if kept and None not in kept.values():
                break
    return tuple(found.values())


def _alike(op: Op, plain: Drawn) -> Iterator[tuple[End, Drawn]]:
    values = plain.arguments(op, 0)
    ranks = {
        name: str(values[name].dim())
        for name in free_floats(op, values)
        if values[name].dim() > 1 and len(values[name]) >= _LEAST
    }
    names = list(ranks)
    for some in (*([name] for name in names), names[1:], names):
        if some:
            forms = dict.fromkeys(some, "with alike ends")
            yield (*some, *(ranks[name] for name in some)), replace(plain, forms=forms)


def draw_equal(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Two inputs of other axes, as a teacher's and a student's, have equal sizes.

    Args:
        op, seed, elements, rows: as draw.
    """
    generator, found = random.Random(f"equal of {seed}"), list[Drawn]()
    for pairs in _like_axes(op.of_role("input")):
        single = generator.random() < _SINGLE
        for one in _tries(op, generator, elements, rows, {}, single=single):
            sizes = {name: max(_LEAST, size) for name, size in one.workload.sizes.items()}
            if not {name for pair in pairs for name in pair} <= set(sizes):
                break
            for name, other in map(sorted, pairs):
                sizes[other] = sizes[name] = min(sizes[name], sizes[other])
            made = replace(one, workload=replace(one.workload, sizes=sizes))
            if fits(op, sizes, elements) and (kept := allowed(op, made)) is not None:
                found.append(kept)
                break
    return tuple(found)


def draw_least(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """One row with each other axis 1 long; and all of them, with some of the cases' options.

    Args:
        op, seed, elements, rows: as draw.
    """
    generator, found = random.Random(f"least of {seed}"), list[Drawn]()
    leading = op.of_role("input")[0].axes[:1]
    every = [each.name for each in op.axes]
    wishes = [((*leading, axis), False) for axis in every if axis not in leading]
    options = _OPTIONS if rows is None else 1
    wishes += [(tuple(every), False), *[(tuple(every), True)] * options]
    for axes, single in wishes:
        for one in _tries(op, generator, elements, rows, dict.fromkeys(axes, (1,)), single=single):
            if one not in found and (kept := allowed(op, one)) is not None:
                found.append(kept)
                break
    return tuple(found)


def _tries(
    op: Op,
    generator: random.Random,
    elements: int,
    rows: int | None,
    wanted: Mapping[str, tuple[int, ...]],
    *,
    single: bool,
) -> Iterator[Drawn]:
    """Plain cases, with axes of one of the sizes that are wanted; of production, or an option."""
    bases, options = bases_of(op), single_options(op) if single else [None]
    if op.inputs is None or not bases or not options:
        return
    most = largest_sizes(op, elements, rows)
    for _ in range(_TRIES):
        one = draw_one(op, bases, generator.choice(options), generator, most, elements)
        if one is None:
            continue
        sizes = {**one.workload.sizes}
        sizes |= {axis: generator.choice(wanted[axis]) for axis in sizes if axis in wanted}
        if fits(op, sizes, elements):
            workload = replace(one.workload, sizes=sizes)
            yield Drawn(workload=workload, factors={})


def _like_axes(inputs: tuple[TensorSpec, ...]) -> list[frozenset[frozenset[str]]]:
    """Axes that would be equal if two inputs were of one shape: each choice of them once."""
    floats = [each for each in inputs if each.dtypes[0] in FLOATS and len(each.axes) > 1]
    return list(
        dict.fromkeys(
            frozenset(frozenset(pair) for pair in zip(one.axes, other.axes, strict=True))
            - {frozenset((axis,)) for axis in one.axes}
            for one, other in combinations(floats, 2)
            if len(one.axes) == len(other.axes) and one.axes != other.axes
        )
    )


def _forms(op: Op, plain: Drawn, generator: random.Random) -> Iterator[tuple[End, Drawn]]:
    del generator
    floats = free_floats(op, plain.arguments(op, 0))
    for name in floats:
        for form in ("ones", "balanced"):
            yield (name, form), replace(plain, forms={name: form})
    for one, other in permutations(floats[1:], 2):
        forms = {one: "ones", other: "balanced"}
        yield (one, other, "ones", "balanced"), replace(plain, forms=forms)
    yield from _zeros(op, plain, floats)


def _zeros(op: Op, plain: Drawn, floats: list[str]) -> Iterator[tuple[End, Drawn]]:
    """Each scalar option 0 where rows are: 0 / 0 is NaN, and gradients are not defined."""
    first = op.of_role("input")[0]
    rows = [
        spec.name for spec in op.of_role("input") if spec.axes == first.axes and spec.name in floats
    ]
    for name, value in plain.arguments(op, 0).items():
        if type(value) is not float or not value:
            continue
        zero = replace(plain, factors={name: 0.0}, gradient=False)
        yield (name, "zero", "zeros"), replace(zero, powers=dict.fromkeys(rows, -inf))
        if takes_kinds(op) and "constant" in kinds_of(op, plain.workload.dtype):
            yield (name, "zero", "constant"), replace(zero, kind="constant")
