"""Long: drawn cases that every check has, in which one axis is very long, as sums and tables are.

What else they have is drawn from the seed, as in `draw`.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from tercet.harness.workloads.allowed import allowed, arguments_of
from tercet.harness.workloads.drawn import Drawn, Incoming
from tercet.harness.workloads.limits import (
    bases_of,
    dtypes_of,
    elements_of,
    kinds_of,
    largest_sizes,
    single_options,
    takes_kinds,
)
from tercet.kernel.contract import Op, Workload

_LONG = (16385, 20001, 32769, 65537)
# 127 times as much is no whole number of float32; two rows of it in a few tensors
_LONGEST, _LONGEST_ELEMENTS = (140_001,), 1 << 20
# of axes that the first input does not have, as of a table: numbers of which many are beyond int16
# and uint16
_BEYOND = (50_000, 98_765)
# of axes that have an end, as experts: numbers of which some are beyond uint8
_BYTE = 259, 300
# what a program may still hold whole
_HELD = (513, 1000, 1024, 2047, 2880, 4096)
# of which a sum of large codes of 8 bits is beyond uint8 or int8, and of which it is beyond int16
_NARROW = (130, 192, 256), (259, 300, 384, 448, 511, 512)
# positions that a table of blocks reaches are beyond int16
_INT16 = 1 << 15
# rows, of which kernels that make something large take some at a time; of two classes one has a
# loss
_CHUNKED, _CHUNKED_OTHERS = (513, 520), (2, 3)
_OPTIONS, _FEW_OPTIONS = 8, 2
# rows that lie far apart, at most: each takes a page of memory, and touching many takes seconds
_FAR_APART = 20_001
# where each is interpreted: of all axes together, at most
_PROGRAMS = 1 << 11
# of which sums have the fewest bits left, and one that no maximum may lose
_KINDS = ("constant", "positive", "outlier", "offset", "nan")
_CANCELLING = "cancelling"
_EXACT = 0.3
_ONE_SIGN = 0.5
_TRIES = 40


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """One case, before its sizes are drawn.

    Attributes:
        axis, lengths: the long one, and what it may be.
        base, kind: the call, and the values.
        elements: of all tensors, at most.
        others: the sizes of other axes.
        fixed: other axes, each of the one size that it has.
        few_programs: whether its programs are interpreted one by one.
        exact: float32, which has the least room for sums that were taken in another way; None to
            draw it.
        one_sign: whether gradients are of one sign, so that they add up; None to draw it.
        far_apart: whether its rows, where they are few enough, lie far apart.
        most: how long the axis may be at least, whatever cases that are drawn have it as.
    """

    axis: str
    lengths: tuple[int, ...]
    base: Workload
    kind: str
    elements: int
    others: tuple[int, int] = (1, 2)
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    few_programs: bool = False
    exact: bool | None = None
    one_sign: bool | None = None
    far_apart: bool = False
    most: int = 0


def draw_long(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Each axis of the first input very long: of one sign, all alike, far from 0, and the like.

    With the options of each workload of production, and one that cases have. The last one also as
    long as a program may hold whole, and as a narrow sum may not hold; more rows than a chunk has,
    with options of the cases; and tables that reach as many positions as they may.

    Args:
        op, seed, elements, rows: as draw.
    """
    if op.inputs is None or not bases_of(op) or not op.of_role("input")[0].axes:
        return ()
    generator, found = random.Random(f"long of {seed}"), list[Drawn]()
    most = largest_sizes(op, elements, rows)
    for wish in _wishes(op, generator, elements, rows):
        drawn = _draw(op, wish, generator, most)
        kept = allowed(op, drawn) if drawn is not None else None
        if kept is not None:
            found.append(kept)
    return tuple(found)


def _wishes(op: Op, generator: random.Random, elements: int, rows: int | None) -> Iterator[_Wish]:
    axes, interpreted = op.of_role("input")[0].axes, rows is not None
    options = [replace(bases_of(op)[0], options=options) for options in single_options(op)]
    bases = [*bases_of(op), *generator.sample(options, min(1, len(options)))]
    known = kinds_of(op, torch.float32) if takes_kinds(op) else ()
    kinds = [kind for kind in _KINDS if kind in known] or ["normal"]
    by_options = list({repr(sorted(each.options.items())): each for each in bases}.values())
    # where programs are interpreted, their iterations count
    lengths = _LONG[:3] if interpreted else _LONG
    pairs = _once(by_options, kinds, generator) if interpreted else product(by_options, kinds)
    for axis, (base, kind) in product(axes, list(pairs)):
        # two of the kinds with rows that lie far apart; what is far from 0 needs exact sums
        long = _Wish(
            axis=axis, lengths=lengths, base=base, kind=kind, elements=elements,
            exact=True if kind == "offset" else None, far_apart=kind in kinds[:2],
        )  # fmt: skip
        if kind == "constant" and not interpreted:
            # adds up to the largest sums; one that is kept in 16 bits stops growing soonest
            long = replace(
                long, lengths=_LONGEST, elements=_LONGEST_ELEMENTS, exact=False, one_sign=True
            )
        yield long
    # what is added once must not be added once a piece
    for axis, base in product(axes, _with_one_input_more(op, options, generator)[:1]):
        yield _Wish(
            axis=axis, lengths=lengths, base=base, kind=generator.choice(kinds), elements=elements
        )
    for kind in kinds:
        yield _Wish(
            axis=axes[-1], lengths=_HELD, base=generator.choice(bases), kind=kind,
            elements=elements, exact=True,
        )  # fmt: skip
    for case in (case for case in op.cases if _CANCELLING in case.name.split("-")):
        # sums are the larger in between, the longer they are; with what makes them large
        yield _Wish(
            axis=axes[-1], lengths=_HELD[-1:], base=replace(bases[0], options=case.options),
            kind=_CANCELLING, elements=elements, exact=True,
        )  # fmt: skip
    count = _FEW_OPTIONS if interpreted else _OPTIONS
    for base in _with_most_inputs(op, options, generator)[:count]:
        yield _Wish(
            axis=axes[0], lengths=_CHUNKED, base=base, kind=generator.choice(kinds),
            elements=elements, others=_CHUNKED_OTHERS, few_programs=interpreted,
        )  # fmt: skip
    # along each axis but of rows and columns, with as many of the others as make a batch
    found = list(product(options, axes[1:-1] or axes[:1]))
    generator.shuffle(found)
    for base, axis in found[: _FEW_OPTIONS if interpreted else None]:
        yield _Wish(
            axis=axis, lengths=_CHUNKED, base=base, kind="normal", elements=elements,
            others=_CHUNKED_OTHERS, few_programs=interpreted,
        )  # fmt: skip
    beside = [name for name in bases[0].sizes if name not in axes]
    for axis, length in product(beside, _BEYOND):
        yield _Wish(
            axis=axis, lengths=(length,), base=generator.choice(bases),
            kind=generator.choice(kinds), elements=elements, others=(1, 1 if interpreted else 2),
        )  # fmt: skip
    yield from _beyond_most(op, elements, generator.choice(bases), interpreted=interpreted)
    for base, lengths in product(by_options[: 1 if interpreted else None], _NARROW):
        yield _Wish(
            axis=axes[-1], lengths=lengths, base=base, kind=kinds[0], elements=elements,
            one_sign=True,
        )  # fmt: skip
    for base, fixed in product(by_options[: 1 if interpreted else None], _reaches(op)):
        yield _Wish(
            axis=max(fixed, key=lambda name: fixed[name]), lengths=(max(fixed.values()),),
            base=base, kind="normal", elements=_LONGEST_ELEMENTS, fixed=fixed,
        )  # fmt: skip


def _beyond_most(op: Op, elements: int, base: Workload, *, interpreted: bool) -> Iterator[_Wish]:
    """Axes that are longer than other cases have room for, all else as short as it may be.

    Of those that the first input has not, as experts, so long that the last have numbers beyond
    uint8, and rows to name them; of its own, as positions, beyond int16.
    """
    first = op.of_role("input")[0].axes
    for axis in (each for each in op.axes if each.name in base.sizes and each.name not in first):
        if axis.most is not None and axis.most < max(_BYTE):
            yield _Wish(
                axis=axis.name, lengths=_BYTE, base=base, kind="normal", elements=elements,
                fixed={first[0]: _CHUNKED[0]}, most=max(_BYTE),
            )  # fmt: skip
    for axis in first if not interpreted else ():
        least = dict.fromkeys(base.sizes, 1) | {first[-1]: 2}
        if elements_of(op, least | {axis: _LONG[2]}) > elements:
            yield _Wish(
                axis=axis, lengths=_BEYOND[:1], base=base, kind="normal",
                elements=_LONGEST_ELEMENTS, fixed=least,
            )  # fmt: skip


def _draw(op: Op, wish: _Wish, generator: random.Random, most: dict[str, int]) -> Drawn | None:
    """What is wished, or None where no sizes fit."""
    rows = op.of_role("input")[0].axes[0]
    for _ in range(_TRIES):
        sizes = {name: generator.choice(wish.others) for name in wish.base.sizes}
        # one row's sum may be right by luck
        sizes[rows] = generator.choice((2, 3, 5, 8))
        sizes |= wish.fixed
        sizes[wish.axis] = generator.choice(wish.lengths)
        if wish.few_programs:
            _make_small(sizes, wish.axis, generator)
        if (
            sizes[wish.axis] <= max(most[wish.axis], wish.most)
            and elements_of(op, sizes) <= wish.elements
        ):
            break
    else:
        return None
    dtypes = dtypes_of(op, wish.base)
    numbered = any(spec.chooses == wish.axis for spec in op.of_role("input"))
    exact = generator.random() < _EXACT if wish.exact is None else wish.exact
    one_sign = generator.random() < _ONE_SIGN if wish.one_sign is None else wish.one_sign
    dtype = torch.float32 if exact and torch.float32 in dtypes else generator.choice(dtypes)
    return Drawn(
        workload=replace(wish.base, name="drawn", sizes=sizes, dtype=dtype),
        kind=wish.kind,
        factors={},
        order="edges of" if numbered and sizes[rows] % 2 else None,
        layout="far apart" if wish.far_apart and sizes[rows] <= _FAR_APART else None,
        incoming=Incoming(positive=bool(op.differentiable) and one_sign),
    )


def _reaches(op: Op) -> list[dict[str, int]]:
    """Sizes of which a table of indices reaches more positions than int16 counts.

    An axis of the table as long as it may be, and one of what it names; with those that have no
    end for each position where they are short, for each entry where they are not.
    """
    first = op.of_role("input")[0].axes
    beside = [axis for axis in op.axes if axis.name not in first]
    integers = [spec for spec in op.of_role("input") if not spec.dtypes[0].is_floating_point]
    table = {name for spec in integers for name in spec.axes}
    # columns of a row are no positions
    columns = {spec.axes[-1] for spec in op.of_role("input")[1:] if len(spec.axes) > 3}
    found = list[dict[str, int]]()
    for entries, named in product(beside, beside):
        count, size = entries.most, named.most
        if entries.name not in table or named.name in table | columns:
            continue
        if count is not None and size is not None and count * size > _INT16:
            fixed = {first[0]: 1, entries.name: count, named.name: size}
            for axis in (axis for axis in beside if axis.most is None):
                large = elements_of(op, {**fixed, axis.name: count * size}) > _LONGEST_ELEMENTS
                fixed[axis.name] = count if large else count * size
            found.append(fixed)
    return found


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
    shuffled = generator.sample(workloads, len(workloads))
    return sorted(shuffled, key=lambda one: _inputs(op, one, names), reverse=True)


def _with_one_input_more(
    op: Op, workloads: list[Workload], generator: random.Random
) -> list[Workload]:
    """Those that have an optional input which the first base has not, in any order."""
    names = [spec.name for spec in op.of_role("input")]
    usual = _inputs(op, bases_of(op)[0], names)
    more = [one for one in workloads if _inputs(op, one, names) > usual]
    return generator.sample(more, len(more))


def _inputs(op: Op, workload: Workload, names: list[str]) -> int:
    """How many of these inputs a workload has."""
    few = replace(workload, sizes=dict.fromkeys(workload.sizes, 2))
    arguments = arguments_of(op, Drawn(workload=few, factors={})) or {}
    return sum(isinstance(arguments.get(name), Tensor) for name in names)


def _make_small(sizes: dict[str, int], kept: str, generator: random.Random) -> None:
    """Axes of 1 in place of others, until few programs are left to interpret."""
    for name in generator.sample(sorted(sizes), len(sizes)):
        if prod(sizes.values()) <= _PROGRAMS:
            return
        if name != kept:
            sizes[name] = 1
