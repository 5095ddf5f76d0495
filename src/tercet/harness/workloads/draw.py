"""Draw: cases that nobody wrote, from the op's own inputs, at sizes that break kernels.

A run draws fresh ones from its seed. Sizes lie at and beside what kernels are written for (powers
of two, multiples of 128, production widths), up to ids beyond int16; options that the op's cases
have apart come together, scalar ones get other values, what is ignored comes in runs of rows too,
leading axes become several. What the op's contract refuses is drawn again.
"""

import inspect
import random
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import TercetError
from tercet.formats import PackedTensor
from tercet.harness.workloads.arguments import tied_arguments
from tercet.harness.workloads.drawn import FLOATS, Drawn, Incoming, numbers_in
from tercet.harness.workloads.gradients import (
    describe_outputs,
    draw_grad_outputs,
    make_leaves,
    select_differentiable,
    vjp,
)
from tercet.harness.workloads.layouts import LAYOUTS
from tercet.harness.workloads.shapes import workloads_of
from tercet.kernel.cases import KINDS
from tercet.kernel.contract import Op, Workload, outputs_of
from tercet.kernel.select import using

_MODELS = ("smollm2-135m", "qwen3-30b-a3b")
_SMALL = (1, 2, 3, 4, 5, 6, 7, 8)
_BESIDE = tuple(2**power + by for power in range(3, 13) for by in (-1, 0, 1))
_MULTIPLES = tuple(128 * times for times in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32))
_WIDTHS = (576, 1536, 2880, 4096, 5120, 7168, 8192, 14336)
_LARGE = (32769, 65537)
_LONG = (16385, 20001, 32769, 65537)
# of which sums have the fewest bits left
_LONG_KINDS = ("constant", "positive", "outlier")
_MANY = (17, 18, 33, 40, 65, 70, 129)
_TRIES = 40
# of the drawn cases, those with two options that no case need have together
_PAIRED = 0.75
# of the two that are refused at the sizes that were drawn with them, those that are left out
_WITHOUT_ROWS = 0.12  # of the cases: one row, as a vector
_GIVEN_UP = 0.2
_LAID_OUT = 0.3  # of the cases, in any other layout
_SCALED = 0.3  # of the cases: numbers of one argument times a power of two
_MORE_OPTIONS = 0.3  # of the cases with two options: others too
_ABSENT = 0.2  # of the cases with an optional input
_OTHER_DTYPE, _DTYPE_TRIES = 0.2, 6  # of the cases: some inputs in another dtype than the first
_INCOMING = 0.4  # of the cases: incoming gradients that are not what is drawn for all
# where rows are limited, each costs a program
_FEW_ROWS = 1000
_ROWS = 0.3  # of the cases: many rows, whatever else there is much of
_ACROSS = 0.5  # of the cases with two large axes: one a whole number of tiles, the other beside one
# powers of two, which keep what is drawn within most of its dtype's range
_POWERS = {torch.float16: (-12, 4)}
_OTHER_POWERS = (-24, 8)
_ZERO = 0.15  # of the scalar options that are changed
# times as many elements as in all tensors, at most: in what two axes span, as logits are no tensor
# of the contract, and in packed weights, which are none either
_BETWEEN = 4
_HEADROOM = 8  # of partial sums over the whole
_WEIGHTS = 8


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
    bases = _bases(op)
    if op.inputs is None or not bases:
        return ()
    most, generator, found = _most(op, elements, rows), random.Random(seed), dict[str, Drawn]()
    pairs = _pairs(op, generator)
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        options = pairs[-1] if pairs and generator.random() < _PAIRED else None
        if options is not None and generator.random() < _MORE_OPTIONS:
            options = generator.choice(pairs) | options
        one = _draw_one(op, bases, options, generator, most, elements)
        if one is None or one.name in found:
            continue
        kept = allowed(op, one)
        if kept is not None:
            found[one.name] = kept
        if options is not None and (kept is not None or generator.random() < _GIVEN_UP):
            pairs.pop()
    return tuple(found.values())


def draw_kinds(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """A case of each kind of values that the op's cases have, at more rows than a tile has.

    Args:
        op, seed, elements, rows: as draw.
    """
    bases, leading = _bases(op), op.of_role("input")[0].axes[:1]
    if not bases or not leading or not _takes_kinds(op):
        return ()
    most, generator = _most(op, elements, rows), random.Random(f"kinds of {seed}")
    many = [size for size in _MANY if size <= most[leading[0]]]
    known, single = {kind for dtype in FLOATS for kind in _kinds(op, dtype)}, _single(op)
    found = list[Drawn]()
    for kind in sorted(known) if many else ():
        for _ in range(_TRIES):
            options = generator.choice((None, *single))
            one = _draw_one(op, bases, options, generator, most, elements)
            if one is None or (kind == "largest" and kind not in _kinds(op, one.workload.dtype)):
                continue
            # an eps of 0 is for plain numbers
            factors = {name: factor for name, factor in one.factors.items() if factor}
            one = replace(one, factors=factors)
            sizes = {**one.workload.sizes, leading[0]: generator.choice(many)}
            one = replace(one, kind=kind, split=1, workload=replace(one.workload, sizes=sizes))
            kept = allowed(op, one) if _fits(op, sizes, elements) else None
            if kept is not None:
                found.append(kept)
                break
    return tuple(found)


def draw_long(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Each axis of the first input very long: of one sign, all alike, and one far from all others.

    With the options of each workload of production, and one that cases have.

    Args:
        op, seed, elements, rows: as draw.
    """
    bases, axes = _bases(op), op.of_role("input")[0].axes
    if op.inputs is None or not bases:
        return ()
    generator, found = random.Random(f"long of {seed}"), list[Drawn]()
    others = [replace(bases[0], options=options) for options in _single(op)]
    bases += generator.sample(others, min(1, len(others)))
    by_options = {repr(sorted(each.options.items())): each for each in bases}
    known = _kinds(op, torch.float32) if _takes_kinds(op) else ()
    kinds = [kind for kind in _LONG_KINDS if kind in known] or ["normal"]
    most = _most(op, elements, rows)
    for axis, base, kind in product(axes, by_options.values(), kinds):
        few = {name: generator.choice((1, 2)) for name in base.sizes}
        # one row's sum may be right by luck
        few[axes[0]] = generator.choice((2, 3, 5, 8))
        # with a limit of rows, each program's iterations count
        sizes = {**few, axis: generator.choice(_LONG if rows is None else _LONG[:3])}
        if sizes[axis] > most[axis] or _elements(op, sizes) > elements:
            continue
        dtype = generator.choice(_dtypes(op, base))
        workload = replace(base, name="drawn", sizes=sizes, dtype=dtype)
        # one of the two with rows that lie far apart
        layout = "far apart" if kind == kinds[0] else None
        kept = allowed(op, Drawn(workload=workload, kind=kind, factors={}, layout=layout))
        if kept is not None:
            found.append(kept)
    return tuple(found)


def _dtypes(op: Op, base: Workload) -> list[torch.dtype]:
    """Of activations: what the op's inputs may be drawn in."""
    floats = [spec.dtypes for spec in op.of_role("input") if spec.dtypes[0].is_floating_point]
    return [each for each in (*floats, (base.dtype,))[0] if each.itemsize > 1] or [base.dtype]


def _most(op: Op, elements: int, rows: int | None) -> dict[str, int]:
    """The largest size of each axis."""
    most = {each.name: each.most or elements for each in op.axes}
    leading = op.of_role("input")[0].axes[:1]
    return most | {axis: min(most[axis], rows) for axis in leading if rows is not None}


def allowed(op: Op, drawn: Drawn) -> Drawn | None:
    """The case, if the op's contract takes its arguments: its fake, own checks and reference.

    Without a gradient where the op refuses one for these options.
    """
    try:
        arguments = drawn.arguments(op, 0)
        prepared = op.prepare(arguments)
        promised = describe_outputs(op, prepared)
        kept = _called(op, drawn, prepared)
        with warnings.catch_warnings():
            # of arguments that it does not take
            warnings.simplefilter("ignore")
            # last: of sizes that the op refuses it may make something that is very large
            if kept is not None:
                kept = _kept_in_range(op, kept, promised, outputs_of(op.reference(**arguments)))
    except Exception:  # noqa: BLE001 whatever refuses them, they are no arguments
        return None
    return kept


def _kept_in_range(
    op: Op, drawn: Drawn, promised: tuple[Tensor, ...], expected: tuple[Tensor, ...]
) -> Drawn:
    """Without a gradient where what is saved for it is near the end of its range, or beyond.

    A sum that is kept in float16, say, until it is divided.
    """
    results = zip(op.of_role("output", "saved"), promised, expected, strict=True)
    beyond = any(
        spec.role == "saved"
        and fake.is_floating_point()
        and bool((right.abs() > torch.finfo(fake.dtype).max / _HEADROOM).any())
        for spec, fake, right in results
    )
    return replace(drawn, gradient=False) if beyond else drawn


def _called(op: Op, drawn: Drawn, prepared: dict[str, Any]) -> Drawn | None:
    """What is left of the case after a call of the op in plain torch."""
    plain = [each for each in op.implementations if each.language == "torch"]
    if not plain or op.unfit(plain[-1], prepared) is not None:
        return drawn
    names = select_differentiable(op, prepared)
    leaves = make_leaves(prepared, names)
    with using(op, plain[-1].load()):
        try:
            outputs = outputs_of(op.run(*leaves.values()))
        except TercetError:
            return None
        except Exception:  # noqa: BLE001 the check will say so
            return drawn
        if not names:
            return drawn
        try:
            gradients = vjp(outputs, draw_grad_outputs(op, prepared, 0), leaves, names)
        except TercetError:
            return replace(drawn, gradient=False)
        except Exception:  # noqa: BLE001 the check will say so
            return drawn
    has_all = all(each is not None for each in gradients.values())
    return drawn if has_all else replace(drawn, gradient=False)


def _pairs(op: Op, generator: random.Random) -> list[dict[str, Any]]:
    """Every option that the op's cases have, each with each of its values; and every two."""
    found = _values_of_options(op)
    pairs = [
        {one: value, other: beside}
        for one, other in combinations(sorted(found), 2)
        for value in found[one]
        for beside in found[other]
    ] + _single(op)
    generator.shuffle(pairs)
    return pairs


def _single(op: Op) -> list[dict[str, Any]]:
    return [{name: value} for name, known in _values_of_options(op).items() for value in known]


def _values_of_options(op: Op) -> dict[str, list[Any]]:
    """Each option that the op's cases have, and what they have it as."""
    found = dict[str, list[Any]]()
    for case in op.cases:
        for name, value in case.options.items():
            known = found.setdefault(name, [])
            if value not in known:
                known.append(value)
    return found


def _bases(op: Op) -> list[Workload]:
    return [each for model in _MODELS for each in workloads_of(op, model)]


def _draw_one(
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
        kinds = across[at] if across else (_BESIDE, _BESIDE, _MULTIPLES, _WIDTHS, _LARGE)
        fitting = [
            size
            for size in generator.choice(kinds)
            if size <= most[axis] and _fits(op, {**sizes, axis: size}, elements)
        ]
        if fitting:
            sizes[axis] = generator.choice(fitting)
    if not _fits(op, sizes, elements):
        return None
    workload = replace(
        base,
        name="drawn",
        sizes=sizes,
        dtype=generator.choice(_dtypes(op, base)),
        options=base.options if options is None else options,
    )
    kind = "normal"
    if _takes_kinds(op):
        own = _kinds(op, workload.dtype)
        # wide values are outliers of a milder kind
        wide = ("wide",) if "mixed" in own else ()
        # two options at once are best seen among plain numbers
        plain = len(own) + 1 if options is None else 3 * len(own) + 1
        kind = generator.choice(("normal",) * plain + own + wide)
    drawn = Drawn(workload=workload, kind=kind, factors={})
    try:
        arguments = drawn.arguments(op, 0)
    except Exception:  # noqa: BLE001 sizes that the op's inputs refuse
        return None
    if sum(map(_packed_elements, arguments.values())) > _WEIGHTS * elements:
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
    scalable = [name for name in free if _float_of(arguments[name]) is not None]
    if scalable and generator.random() < _SCALED:
        name = generator.choice(scalable)
        drawn = replace(drawn, powers={name: _power(generator, _float_of(arguments[name]))})
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
            if _takes(op, other := replace(drawn, dtypes=changed)):
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
            power=generator.choice((0, _power(generator, drawn.workload.dtype))),
            masked=generator.choice((0, 2, generator.randint(2, 100))),
            layout=generator.choice((None, *sorted(set(LAYOUTS) - {"far apart"}))),
        )
        drawn = replace(drawn, incoming=how)
    return drawn


def _takes(op: Op, drawn: Drawn) -> bool:
    """Whether the op's fake takes the arguments."""
    try:
        describe_outputs(op, op.prepare(drawn.arguments(op, 0)))
    except Exception:  # noqa: BLE001 whatever refuses them, they are no arguments
        return False
    return True


def _power(generator: random.Random, dtype: torch.dtype | None) -> int:
    return generator.randint(*_POWERS.get(dtype, _OTHER_POWERS) if dtype else _OTHER_POWERS)


def _float_of(value: Any) -> torch.dtype | None:
    """Of a tensor's numbers, or of the scales of packed weights; None where they are no floats."""
    if isinstance(value, tuple):
        several = cast("tuple[Any, ...]", value)
        return _float_of(several[0]) if several else None
    if isinstance(value, PackedTensor):
        return _float_of(value.scale)
    return value.dtype if isinstance(value, Tensor) and value.dtype in FLOATS else None


def _factor(generator: random.Random, kind: str) -> float:
    """Of a scalar option: 0 is a number as well, but an eps keeps what has no spread from 0 / 0."""
    if kind == "normal" and generator.random() < _ZERO:
        return 0.0
    return 10 ** generator.uniform(*generator.choice(((-1, 1), (-1, 1), (-6, -1))))


def _takes_kinds(op: Op) -> bool:
    return op.inputs is not None and "kind" in inspect.signature(op.inputs).parameters


def _kinds(op: Op, dtype: torch.dtype) -> tuple[str, ...]:
    """The kinds of the op's own cases; the largest numbers only where those hold them.

    Squares or sums of them may be beyond float32, and then the op promises nothing.
    """
    known = [(word, case) for case in op.cases for word in case.name.split("-") if word in KINDS]
    largest = any(
        isinstance(value, Tensor) and value.dtype == dtype
        for kind, case in known
        if kind == "largest"
        for value in case.make(0).values()
    )
    kinds = {kind for kind, _ in known if kind != "largest" or largest}
    kinds |= {"small", "positive"} if kinds else set()
    kinds |= {"lowest"} if "subnormal" in kinds else set()
    kinds |= {"outlier"} if "mixed" in kinds else set()
    return tuple(each for each in KINDS if each in kinds)


def _fits(op: Op, sizes: Mapping[str, int], elements: int) -> bool:
    """Whether the tensors, and what a reference may make of any two axes, are small enough."""
    longest = sorted(sizes.values())[-2:]
    return _elements(op, sizes) <= elements and prod(longest) <= _BETWEEN * elements


def _elements(op: Op, sizes: Mapping[str, int]) -> int:
    return sum(prod(sizes.get(axis, 1) for axis in spec.axes) for spec in op.tensors)


def _packed_elements(value: Any) -> int:
    """Of a packed weight, or of several."""
    if isinstance(value, PackedTensor):
        return prod(value.shape)
    if isinstance(value, tuple):
        return sum(map(_packed_elements, cast("tuple[Any, ...]", value)))
    return 0
