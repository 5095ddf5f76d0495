"""Systematic: drawn cases that every check has, one of each kind of thing.

Each kind of values at many rows, each option with one row, inputs in other dtypes. What else they
have is drawn from the seed, as in `draw`. Ends of ranges are in `ends`, long axes in `long`.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import inf, prod

import torch

from tercet.harness.workloads.allowed import allowed, takes
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.draw import draw_one
from tercet.harness.workloads.drawn import FLOATS, PLAIN, Drawn
from tercet.harness.workloads.limits import (
    bases_of,
    elements_of,
    fits,
    float_of,
    free_floats,
    kinds_of,
    largest_sizes,
    single_options,
    takes_kinds,
)
from tercet.kernel.contract import Op

_MANY = (17, 18, 33, 40, 65, 70, 129)
_TRIES = 40
_TRIES_AN_END, _SOME = 12, 64
# refusals after which an end is given up
_REFUSALS = 3
_ENDS_A_CASE = 8
# of each axis, where rounding is not to disappear in a mean: of one class there is no loss
_FEW = 3, 8

End = tuple[str, ...]
"""An argument, or "all", which end, and of numbers whether they are in float16; or other dtypes."""


def draw_kinds(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """A case of each kind of values that the op's cases have, at more rows than a tile has.

    Args:
        op, seed, elements, rows: as draw.
    """
    bases, leading = bases_of(op), op.of_role("input")[0].axes[:1]
    if not bases or not leading or not takes_kinds(op):
        return ()
    most, generator = largest_sizes(op, elements, rows), random.Random(f"kinds of {seed}")
    many = [size for size in _MANY if size <= most[leading[0]]]
    known, single = {kind for dtype in FLOATS for kind in kinds_of(op, dtype)}, single_options(op)
    found = list[Drawn]()
    for kind in sorted(known) if many else ():
        for _ in range(_TRIES):
            options = generator.choice((None, *single))
            one = draw_one(op, bases, options, generator, most, elements)
            if one is None or (kind == "largest" and kind not in kinds_of(op, one.workload.dtype)):
                continue
            # an eps of 0 is for plain numbers
            factors = {name: factor for name, factor in one.factors.items() if factor}
            one = replace(one, factors=factors)
            sizes = {**one.workload.sizes, leading[0]: generator.choice(many)}
            one = replace(one, kind=kind, split=1, workload=replace(one.workload, sizes=sizes))
            kept = allowed(op, one) if fits(op, sizes, elements) else None
            if kept is not None:
                found.append(kept)
                break
    return tuple(found)


def draw_single(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases of one row, as a step of decoding has; each with an option of the cases.

    And each with an input that is 0, too.

    Args:
        op, seed, count, elements, rows: as draw.
    """
    bases = bases_of(op)
    if op.inputs is None or not bases or not (axes := op.of_role("input")[0].axes):
        return ()
    most, generator = largest_sizes(op, elements, rows), random.Random(f"single of {seed}")
    options, found = single_options(op), list[Drawn]()
    generator.shuffle(options)
    for each in options[:count]:
        for _ in range(_TRIES_AN_END):
            one = draw_one(op, bases, each, generator, most, elements)
            if one is None:
                continue
            workload = replace(one.workload, sizes={**one.workload.sizes, axes[0]: 1})
            plain = Drawn(workload=workload, factors={}, split=generator.choice((0, 1)))
            kept = allowed(op, plain)
            if kept is not None:
                found += [kept, *_with_a_zero(op, kept, generator)]
                break
    return tuple(found)


def _with_a_zero(op: Op, plain: Drawn, generator: random.Random) -> list[Drawn]:
    """The same with one input, or the scales of packed weights, 0: what is divided by it is NaN."""
    arguments = plain.arguments(op, 0)
    free = [name for name in arguments if name not in tied_arguments(op, arguments)]
    floats = [name for name in free if float_of(arguments[name]) is not None]
    if not floats:
        return []
    powers = {generator.choice(floats[1:] or floats): -inf}
    kept = allowed(op, replace(plain, powers=powers, gradient=False))
    return [] if kept is None else [kept]


def draw_dtypes(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases whose inputs, all but the first, are in other dtypes than they were.

    One by one, two that follow each other, and all together; those in a dtype with more digits, at
    few numbers.

    Args:
        op, seed, count, elements, rows: as draw.
    """
    return draw_each(op, random.Random(f"dtypes of {seed}"), count, elements, rows, _dtypes)


def draw_each(
    op: Op,
    generator: random.Random,
    count: int,
    elements: int,
    rows: int | None,
    changes: Callable[[Op, Drawn, random.Random], Iterator[tuple[End, Drawn]]],
) -> tuple[Drawn, ...]:
    """Up to so many of the changes that a plain case may have, each once.

    Args:
        op, count, elements, rows: as draw.
        generator: what draws the plain cases, and which of the changes come first.
        changes: (op, plain case, generator) to changed ones, each with what tells it from others.
    """
    bases = bases_of(op)
    if op.inputs is None or not bases:
        return ()
    most = largest_sizes(op, elements, rows)
    options, found, refused = (None, *single_options(op)), dict[End, Drawn](), dict[End, int]()
    for _ in range(_TRIES_AN_END * count):
        if len(found) == count:
            break
        one = draw_one(op, bases, generator.choice(options), generator, most, elements)
        # of a few numbers none may be where a range ends
        if one is None or _elements_of_first(op, one.workload.sizes) < _SOME:
            continue
        plain = Drawn(workload=one.workload, factors={}, split=max(one.split, 1))
        ends = [
            (end, changed)
            for end, changed in changes(op, plain, generator)
            if end not in found and refused.get(end, 0) < _REFUSALS
        ]
        for end, changed in generator.sample(ends, min(len(ends), _ENDS_A_CASE)):
            # another call may have it: with its dtypes, or an input that this one lacks
            if not takes(op, changed):
                continue
            kept = allowed(op, changed)
            if kept is None or (kept.incoming != PLAIN and not kept.gradient):
                refused[end] = refused.get(end, 0) + 1
                continue
            found[end] = kept
            break
    return tuple(found.values())


def _elements_of_first(op: Op, sizes: Mapping[str, int]) -> int:
    """Of the first input; of all tensors where it has an axis that is made of others."""
    axes = op.of_role("input")[0].axes
    if not set(axes) <= set(sizes):
        return elements_of(op, sizes)
    return prod(sizes[axis] for axis in axes)


def _dtypes(op: Op, plain: Drawn, _: random.Random) -> Iterator[tuple[End, Drawn]]:
    arguments = plain.arguments(op, 0)
    floats = free_floats(op, arguments)
    for some in _neighbours(floats[1:]):
        for dtype in FLOATS:
            changed = {name: dtype for name in some if arguments[name].dtype != dtype}
            wider = all(_digits(dtype) > _digits(arguments[name].dtype) for name in changed)
            if changed:
                other = replace(plain, dtypes=changed)
                yield (*some, str(dtype), str(wider)), _made_small(other) if wider else other


def _digits(dtype: torch.dtype) -> float:
    return 1 / torch.finfo(dtype).eps


def _made_small(one: Drawn) -> Drawn:
    """Of few numbers: what is lost of each is lost in a mean over many."""
    sizes = {name: min(max(size, _FEW[0]), _FEW[1]) for name, size in one.workload.sizes.items()}
    return replace(one, split=1, workload=replace(one.workload, sizes=sizes))


def _neighbours(names: list[str]) -> list[list[str]]:
    """Each alone, each with the next one, and all of them."""
    pairs = [list(pair) for pair in pairwise(names)]
    return [[name] for name in names] + pairs + ([names] if len(names) > 2 else [])
