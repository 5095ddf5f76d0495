"""Systematic: drawn cases that every check has, one of each kind of thing.

Each kind of values at many rows, each axis very long, each scalar option and the numbers of each
input at their ends. What else they have is drawn from the seed, as in `draw`.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import inf, prod

import torch
from torch import Tensor

from tercet.harness.workloads.allowed import allowed, arguments_of
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.draw import POWERS, draw_one, gradient_powers
from tercet.harness.workloads.drawn import FLOATS, PLAIN, Drawn, Incoming
from tercet.harness.workloads.limits import (
    bases_of,
    dtypes_of,
    elements_of,
    fits,
    float_of,
    kinds_of,
    largest_sizes,
    single_options,
    takes_kinds,
)
from tercet.kernel.contract import Op, Workload

_MANY = (17, 18, 33, 40, 65, 70, 129)
_LONG = (16385, 20001, 32769, 65537)
# 127 times as much is no whole number of float32; two rows of it in a few tensors
_LONGEST, _LONGEST_ELEMENTS = 140_001, 1 << 20
# of axes that the first input does not have, as of a table: numbers of which many are beyond int16
# and uint16
_BEYOND = (50_000, 98_765)
# what a program may still hold whole
_HELD = (513, 1000, 1024, 2047, 2880, 4096)
# rows, of which kernels that make something large take some at a time
_CHUNKED = (513, 520)
_OPTIONS, _FEW_OPTIONS = 8, 2
# of the other axes; of two classes one has a loss
_FEW = ((1, 2), (2, 3))
# where each is interpreted: of all axes together, at most
_PROGRAMS = 1 << 11
# of which sums have the fewest bits left, and one that no maximum may lose
_LONG_KINDS = ("constant", "positive", "outlier", "offset", "nan")
_EXACT = 0.3
_ONE_SIGN = 0.5
_TRIES = 40
_TRIES_AN_END, _SOME = 12, 64
# refusals after which an end is given up
_REFUSALS = 3

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


def draw_long(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Each axis of the first input very long: of one sign, all alike, far from 0, and the like.

    With the options of each workload of production, and one that cases have. The last one also as
    long as a program may hold whole; and more rows than a chunk has, with options of the cases.

    Args:
        op, seed, elements, rows: as draw.
    """
    bases, axes = bases_of(op), op.of_role("input")[0].axes
    if op.inputs is None or not bases or not axes:
        return ()
    generator, found = random.Random(f"long of {seed}"), list[Drawn]()
    others = [replace(bases[0], options=options) for options in single_options(op)]
    bases += generator.sample(others, min(1, len(others)))
    by_options = {repr(sorted(each.options.items())): each for each in bases}
    known = kinds_of(op, torch.float32) if takes_kinds(op) else ()
    kinds = [kind for kind in _LONG_KINDS if kind in known] or ["normal"]
    each = list(product(by_options.values(), kinds))
    long = _LONG
    if rows is not None:
        # where programs are interpreted, their iterations count
        each, long = _once(list(by_options.values()), kinds, generator), _LONG[:3]
    wanted = [(axis, long, base, kind) for axis in axes for base, kind in each]
    wanted += [(axes[-1], _HELD, generator.choice(bases), kind) for kind in kinds]
    some = _with_most_inputs(op, others, generator)[: _OPTIONS if rows is None else _FEW_OPTIONS]
    wanted += [(axes[0], _CHUNKED, base, generator.choice(kinds)) for base in some]
    beside = [name for name in bases[0].sizes if name not in axes]
    wanted += [
        (axis, (size,), generator.choice(bases), generator.choice(kinds))
        for axis, size in product(beside, _BEYOND)
    ]
    most = largest_sizes(op, elements, rows)
    for axis, lengths, base, kind in wanted:
        for _ in range(_TRIES):
            few = {name: generator.choice(_FEW[lengths is _CHUNKED]) for name in base.sizes}
            # one row's sum may be right by luck
            few[axes[0]] = generator.choice((2, 3, 5, 8))
            # what is all alike adds up to the largest sums
            longest = lengths is _LONG and kind == "constant"
            sizes = {**few, axis: _LONGEST if longest else generator.choice(lengths)}
            if lengths is _CHUNKED and rows is not None:
                _make_small(sizes, axis, generator)
            room = _LONGEST_ELEMENTS if longest else elements
            if sizes[axis] <= most[axis] and elements_of(op, sizes) <= room:
                break
        else:
            continue
        dtypes = dtypes_of(op, base)
        # float32 has the least room for sums that were taken in another way
        wanted_exact = lengths is _HELD or kind == "offset" or generator.random() < _EXACT
        # and a sum that is kept in 16 bits stops growing soonest
        longest = lengths is _LONG and kind == "constant"
        exact = torch.float32 in dtypes and wanted_exact and not longest
        dtype = torch.float32 if exact else generator.choice(dtypes)
        workload = replace(base, name="drawn", sizes=sizes, dtype=dtype)
        # one of the two with rows that lie far apart
        layout = "far apart" if kind == kinds[0] and lengths is long else None
        # gradients of one sign add up as well
        one_sign = longest or generator.random() < _ONE_SIGN
        incoming = Incoming(positive=bool(op.differentiable) and one_sign)
        drawn = Drawn(workload=workload, kind=kind, factors={}, layout=layout, incoming=incoming)
        kept = allowed(op, drawn)
        if kept is not None:
            found.append(kept)
    return tuple(found)


def _once(
    workloads: list[Workload], kinds: list[str], generator: random.Random
) -> list[tuple[Workload, str]]:
    """Pairs in which each of the workloads comes, and each of the kinds."""
    generator.shuffle(workloads)
    count = max(len(workloads), len(kinds))
    return [(workloads[i % len(workloads)], kinds[i % len(kinds)]) for i in range(count)]


def _with_most_inputs(
    op: Op, workloads: list[Workload], generator: random.Random
) -> list[Workload]:
    """In any order, but those with a mask or the like, of a number a row, first."""
    leading = op.of_role("input")[0].axes[:1]
    names = [spec.name for spec in op.of_role("input") if spec.axes == leading]

    def inputs(workload: Workload) -> int:
        few = replace(workload, sizes=dict.fromkeys(workload.sizes, 2))
        arguments = arguments_of(op, Drawn(workload=few, factors={})) or {}
        return sum(isinstance(arguments.get(name), Tensor) for name in names)

    shuffled = generator.sample(workloads, len(workloads))
    return sorted(shuffled, key=inputs, reverse=True)


def _make_small(sizes: dict[str, int], kept: str, generator: random.Random) -> None:
    """Axes of 1 in place of others, until few programs are left to interpret."""
    for name in generator.sample(sorted(sizes), len(sizes)):
        if prod(sizes.values()) <= _PROGRAMS:
            return
        if name != kept:
            sizes[name] = 1


def draw_single(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases of one row, as a step of decoding has; each with an option of the cases.

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
                found.append(kept)
                break
    return tuple(found)


def draw_ends(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases with one scalar option, or one input's numbers, at an end of its range.

    Options are 0, near it, below it and large; inputs all 0, small and large, one by one and
    together, in float16, whose range ends soonest, and in another dtype; so are incoming gradients.

    Args:
        op, seed, count, elements, rows: as draw.
    """
    return _draw_each(op, random.Random(f"ends of {seed}"), count, elements, rows, _ends)


def draw_dtypes(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many cases whose inputs, all but the first, are in other dtypes than they were.

    One by one, two that follow each other, and all together.

    Args:
        op, seed, count, elements, rows: as draw.
    """
    return _draw_each(op, random.Random(f"dtypes of {seed}"), count, elements, rows, _dtypes)


def _draw_each(
    op: Op,
    generator: random.Random,
    count: int,
    elements: int,
    rows: int | None,
    changes: Callable[[Op, Drawn, random.Random], Iterator[tuple[End, Drawn]]],
) -> tuple[Drawn, ...]:
    """Up to so many of the changes that a plain case may have, each once."""
    bases = bases_of(op)
    if op.inputs is None or not bases:
        return ()
    most = largest_sizes(op, elements, rows)
    options, found, refused = (None, *single_options(op)), dict[End, Drawn](), dict[End, int]()
    axes = op.of_role("input")[0].axes
    for _ in range(_TRIES_AN_END * count):
        if len(found) == count:
            break
        one = draw_one(op, bases, generator.choice(options), generator, most, elements)
        # of a few numbers none may be where a range ends
        if one is None or prod(one.workload.sizes.get(axis, 1) for axis in axes) < _SOME:
            continue
        plain = Drawn(workload=one.workload, factors={}, split=max(one.split, 1))
        ends = [
            (end, changed)
            for end, changed in changes(op, plain, generator)
            if end not in found and refused.get(end, 0) < _REFUSALS
        ]
        if not ends:
            continue
        end, changed = generator.choice(ends)
        kept = allowed(op, changed)
        if kept is None or (kept.incoming != PLAIN and not kept.gradient):
            refused[end] = refused.get(end, 0) + 1
        else:
            found[end] = kept
    return tuple(found.values())


def _ends(op: Op, plain: Drawn, generator: random.Random) -> Iterator[tuple[End, Drawn]]:
    arguments = plain.arguments(op, 0)
    first, dtype = op.of_role("input")[0].name, plain.workload.dtype
    positive = dtype in POWERS and takes_kinds(op) and "positive" in kinds_of(op, dtype)
    for name, value in arguments.items():
        if type(value) is float and value:
            factors = {
                "zero": 0.0,
                "near zero": 1e-4,
                "below zero": -30.0,
                "large": max(30.0, 3 / abs(value)),
            }
            for which, factor in factors.items():
                yield (name, which), replace(plain, factors={name: factor})
            if positive:
                # all that is multiplied by it lies far below 0, what is added in its place may not
                raised = {first: POWERS[dtype][1]}
                opposed = replace(plain, kind="positive", factors={name: -30.0}, powers=raised)
                yield (name, "opposed"), opposed
    tied = tied_arguments(op, arguments)
    floats = {
        name: POWERS[own]
        for name, value in arguments.items()
        if name not in tied and (own := float_of(value)) is not None
    }
    half = str(dtype == torch.float16)
    if op.differentiable:
        least, most = gradient_powers(op, dtype)
        for which, power in (("small", least), ("large", most)):
            yield ("gradients", which, half), replace(plain, incoming=Incoming(power=power))
        # products of the two are within range, the larger one by itself may not be
        small = {name: low for name, (low, _) in floats.items()}
        scaled = replace(plain, incoming=Incoming(power=most), powers=small)
        yield ("gradients", "large", "inputs small", half), scaled
    for name, (low, high) in floats.items():
        for which, power in {"zero": -inf, "small": low, "large": high}.items():
            yield (name, which, half), replace(plain, powers={name: power})
    if len(floats) > 1:
        large = {name: high for name, (_, high) in floats.items()}
        yield ("all", "large", half), replace(plain, powers=large)
        apart = {name: generator.randint(*ends) for name, ends in floats.items()}
        yield ("all", "apart", half), replace(plain, powers=apart)


def _dtypes(op: Op, plain: Drawn, _: random.Random) -> Iterator[tuple[End, Drawn]]:
    arguments = plain.arguments(op, 0)
    tied = tied_arguments(op, arguments)
    floats = [
        name
        for name, value in arguments.items()
        if name not in tied and isinstance(value, Tensor) and value.dtype in FLOATS
    ]
    for some in _neighbours(floats[1:]):
        for dtype in FLOATS:
            changed = {name: dtype for name in some if arguments[name].dtype != dtype}
            if changed:
                yield (*some, str(dtype)), replace(plain, dtypes=changed)


def _neighbours(names: list[str]) -> list[list[str]]:
    """Each alone, each with the next one, and all of them."""
    pairs = [list(pair) for pair in pairwise(names)]
    return [[name] for name in names] + pairs + ([names] if len(names) > 2 else [])
