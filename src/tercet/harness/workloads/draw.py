"""Draw: cases that nobody wrote, from the op's own inputs, at sizes that break kernels.

A run draws fresh ones from its seed. Sizes lie at and beside what kernels are written for (powers
of two, multiples of 128, production widths), up to ids beyond int16; options that the op's cases
have apart come together, scalar ones get other values, what is ignored comes in runs of rows too,
leading axes become several. What the op's contract refuses is drawn again.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from tercet.harness.workloads.allowed import allowed, arguments_of, takes
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.drawn import FLOATS, ORDERS, Drawn, Incoming, numbers_in
from tercet.harness.workloads.layouts import LAYOUTS
from tercet.harness.workloads.limits import (
    bases_of,
    dtypes_of,
    fits,
    float_of,
    kinds_of,
    largest_sizes,
    packed_elements,
    single_options,
    takes_kinds,
    values_of_options,
)
from tercet.kernel.contract import Op, Workload

_SMALL = (1, 2, 3, 4, 5, 6, 7, 8)
_BESIDE = tuple(2**power + by for power in range(3, 13) for by in (-1, 0, 1))
_MULTIPLES = tuple(128 * times for times in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32))
_WIDTHS = (576, 1536, 2880, 4096, 5120, 7168, 8192, 14336)
_LARGE = (32769, 65537)
_BETWEEN = tuple(range(9, 130))
_TRIES = 40
# of the drawn cases, those with two options that no case need have together
_PAIRED = 0.75
# of the two that are refused at the sizes that were drawn with them, those that are left out
_WITHOUT_ROWS = 0.12  # of the cases: one row, as a vector
_GIVEN_UP = 0.2
_LAID_OUT = 0.3  # of the cases, in any other layout
_SCALED = 0.3  # of the cases: numbers of some arguments times powers of two
_MORE_OPTIONS = 0.3  # of the cases with two options: others too
_ABSENT = 0.2  # of the cases with an optional input
_OTHER_DTYPE, _DTYPE_TRIES = 0.2, 6  # of the cases: some inputs in another dtype than the first
_ORDERED = 0.6  # of the cases with indices of rows: in an order that callers have
_INCOMING = 0.4  # of the cases: incoming gradients that are not what is drawn for all
# where rows are limited, each costs a program
_FEW_ROWS = 1000
_ROWS = 0.3  # of the cases: many rows, whatever else there is much of
_ACROSS = 0.5  # of the cases with two large axes: one a whole number of tiles, the other beside one
POWERS = {torch.float32: (-24, 8), torch.bfloat16: (-24, 8), torch.float16: (-12, 4)}
"""Of two, which keep what is drawn within most of its dtype's range."""
# a scale of 65536 is not the last that float16 lacks
_LOSS_SCALES = (-24, 20)
_ZERO = 0.15  # of the scalar options that are changed
_AT_THE_END = ("large", "largest")  # of a dtype's range
_WEIGHTS = 8  # times as many elements in packed weights, at most, as in all tensors


def draw(
    op: Op, seed: int, count: int, elements: int, rows: int | None = None
) -> tuple[Drawn, ...]:
    """Up to so many different cases of the op; equal seeds draw equal ones.

    Args:
        op: with `inputs` and `shapes`; without, nothing can be drawn.
        seed: of what is drawn.
        count: how many.
        elements: of all tensors of a case together, at most; of packed weights eight times as many.
        rows: of the first input, at most; most kernels run a program for each.
    """
    bases = bases_of(op)
    if op.inputs is None or not bases:
        return ()
    most, generator, found = (
        largest_sizes(op, elements, rows),
        random.Random(seed),
        dict[str, Drawn](),
    )
    pairs = _pairs(op, generator)
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        options = pairs[-1] if pairs and generator.random() < _PAIRED else None
        if options is not None and generator.random() < _MORE_OPTIONS:
            options = generator.choice(pairs) | options
        one = draw_one(op, bases, options, generator, most, elements)
        if one is None or one.name in found:
            continue
        kept = allowed(op, one)
        if kept is not None:
            found[one.name] = kept
        if options is not None and (kept is not None or generator.random() < _GIVEN_UP):
            pairs.pop()
    return tuple(found.values())


def _pairs(op: Op, generator: random.Random) -> list[dict[str, Any]]:
    """Every option that the op's cases have, each with each of its values; and every two."""
    found = values_of_options(op)
    pairs = [
        {one: value, other: beside}
        for one, other in combinations(sorted(found), 2)
        for value in found[one]
        for beside in found[other]
    ] + single_options(op)
    generator.shuffle(pairs)
    return pairs


def draw_one(
    op: Op,
    bases: list[Workload],
    options: Mapping[str, Any] | None,
    generator: random.Random,
    most: Mapping[str, int],
    elements: int,
) -> Drawn | None:
    base = generator.choice(bases)
    cap = generator.choice((1, 2, 4, 8, 16))
    sizes = {
        axis: min(size, cap) if generator.random() < 0.5 else generator.choice(_SMALL)
        for axis, size in base.sizes.items()
    }
    hot = generator.sample(sorted(sizes), min(len(sizes), generator.choice((1, 1, 2))))
    leading = op.of_role("input")[0].axes[:1]
    many = leading and most[leading[0]] > _FEW_ROWS and generator.random() < _ROWS
    if many and leading[0] not in hot:
        hot = [*hot[:1], leading[0]]
    across = ((_MULTIPLES,), (_BESIDE,)) if len(hot) > 1 and generator.random() < _ACROSS else ()
    for at, axis in enumerate(hot):
        kinds = across[at] if across else (_BESIDE, _BESIDE, _MULTIPLES, _WIDTHS, _LARGE, _BETWEEN)
        fitting = [
            size
            for size in generator.choice(kinds)
            if size <= most[axis] and fits(op, {**sizes, axis: size}, elements)
        ]
        if fitting:
            sizes[axis] = generator.choice(fitting)
    if not fits(op, sizes, elements):
        return None
    workload = replace(
        base,
        name="drawn",
        sizes=sizes,
        dtype=generator.choice(dtypes_of(op, base)),
        options=base.options if options is None else options,
    )
    kind = "normal"
    if takes_kinds(op):
        own = kinds_of(op, workload.dtype)
        # wide values are outliers of a milder kind
        wide = ("wide",) if "mixed" in own else ()
        # two options at once are best seen among plain numbers
        plain = len(own) + 1 if options is None else 3 * len(own) + 1
        kind = generator.choice(("normal",) * plain + own + wide)
    drawn = Drawn(workload=workload, kind=kind, factors={})
    arguments = arguments_of(op, drawn)
    if arguments is None or sum(map(packed_elements, arguments.values())) > _WEIGHTS * elements:
        return None
    scalars = [name for name, value in arguments.items() if type(value) is float and value]
    factors = {name: _factor(generator, kind) for name in scalars if generator.random() < 0.5}
    numbered = numbers_in(arguments)
    ignored = generator.choice((-generator.randint(1, 300), generator.randint(0, 9)))
    ignored = ignored if numbered and generator.random() < 0.7 else None
    begin = generator.choice((0.0, 0.0, generator.random()))
    run = (begin, begin + (1 - begin) * generator.random())
    flagged = any(
        isinstance(each, Tensor) and each.dtype == torch.bool for each in arguments.values()
    )
    run = run if (ignored is not None or flagged) and generator.random() < 0.7 else None
    split = generator.choice((1, 1, 2, 3))
    drawn = replace(drawn, factors=factors, ignored=ignored, run=run, split=split)
    if any(spec.chooses is not None for spec in op.of_role("input")):
        # of its own numbers, so that cases of other ops are what they were
        own = random.Random(drawn.name)
        order = own.choice(sorted(ORDERS)) if own.random() < _ORDERED else None
        drawn = replace(drawn, order=order)
    if generator.random() < _LAID_OUT:
        # offsets beyond 31 bits are what is most often forgotten
        drawn = replace(drawn, layout=generator.choice((*sorted(LAYOUTS), "far apart")))
    drawn = _varied(op, drawn, arguments, generator)
    if leading and random.Random(drawn.name).random() < _WITHOUT_ROWS:
        one = replace(workload, sizes={**sizes, leading[0]: 1})
        return replace(drawn, workload=one, split=0)
    return drawn


def _varied(op: Op, drawn: Drawn, arguments: Mapping[str, Any], generator: random.Random) -> Drawn:
    """With some arguments larger or smaller, in another dtype or left out; other gradients."""
    specs = {each.name: each for each in op.of_role("input")}
    tied = tied_arguments(op, arguments)
    free = [name for name in arguments if name not in tied]
    scalable = [name for name in free if float_of(arguments[name]) is not None]
    if scalable and generator.random() < _SCALED:
        some = generator.sample(scalable, generator.choice((1, 1, len(scalable))))
        powers = {name: _power(generator, float_of(arguments[name])) for name in some}
        if drawn.kind in _AT_THE_END:
            # products of them would be beyond it
            powers = {name: min(power, 0) for name, power in powers.items()}
        drawn = replace(drawn, powers=powers)
    others = [
        name
        for name in free[1:]
        if isinstance(arguments[name], Tensor) and arguments[name].dtype in FLOATS and name in specs
    ]
    if others and generator.random() < _OTHER_DTYPE:
        for _ in range(_DTYPE_TRIES):
            dtype = generator.choice(FLOATS)
            some = generator.sample(others, generator.randint(1, len(others)))
            changed = {name: dtype for name in some if dtype in specs[name].dtypes}
            if takes(op, other := replace(drawn, dtypes=changed)):
                drawn = other
                break
    optional = [
        name
        for name in free
        if name in specs and specs[name].optional and arguments[name] is not None
    ]
    if optional and generator.random() < _ABSENT:
        name = generator.choice(optional)
        drawn = replace(
            drawn,
            absent=name,
            powers={key: each for key, each in drawn.powers.items() if key != name},
            dtypes={key: each for key, each in drawn.dtypes.items() if key != name},
        )
    if op.differentiable and generator.random() < _INCOMING:
        how = Incoming(
            power=generator.choice(
                (0, generator.randint(*gradient_powers(op, drawn.workload.dtype)))
            ),
            masked=generator.choice((0, 2, generator.randint(2, 100))),
            layout=generator.choice((None, *sorted(set(LAYOUTS) - {"far apart"}))),
        )
        drawn = replace(drawn, incoming=how)
    return drawn


def gradient_powers(op: Op, dtype: torch.dtype) -> tuple[int, int]:
    """Of two, of incoming gradients, the smallest and the largest.

    A loss is in float32 whatever its inputs: its gradient is a mean's, or a loss scale's.
    """
    losses = all(spec.dtypes == (torch.float32,) for spec in op.of_role("output"))
    return _LOSS_SCALES if losses else POWERS.get(dtype, POWERS[torch.float32])


def _power(generator: random.Random, dtype: torch.dtype | None) -> int:
    return generator.randint(*POWERS[torch.float32 if dtype is None else dtype])


def _factor(generator: random.Random, kind: str) -> float:
    """Of a scalar option: 0 is a number as well, but an eps keeps what has no spread from 0 / 0."""
    if kind == "normal" and generator.random() < _ZERO:
        return 0.0
    return 10 ** generator.uniform(*generator.choice(((-1, 1), (-1, 1), (-6, -1))))
