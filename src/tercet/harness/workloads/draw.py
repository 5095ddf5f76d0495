"""Draw: cases that nobody wrote, from the op's own inputs, at sizes that break kernels.

A run draws fresh ones from its seed. Sizes lie at and beside what kernels are written for (powers
of two, multiples of 128, production widths), up to ids beyond int16; options that the op's cases
have apart come together, scalar ones get other values, what is ignored comes in runs of rows too,
leading axes become several. What the op's contract refuses is drawn again.
"""

import inspect
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from tercet.errors import TercetError
from tercet.formats import PackedTensor
from tercet.harness.workloads.gradients import (
    describe_outputs,
    draw_grad_outputs,
    make_leaves,
    select_differentiable,
    vjp,
)
from tercet.harness.workloads.layouts import LAYOUTS, lay_out
from tercet.harness.workloads.shapes import workloads_of
from tercet.kernel.cases import KINDS, NOT_DIFFERENTIABLE
from tercet.kernel.contract import Case, Op, Workload, outputs_of
from tercet.kernel.select import using

_MODELS = ("smollm2-135m", "qwen3-30b-a3b")
_SMALL = (1, 2, 3, 4, 5, 6, 7, 8)
_BESIDE = tuple(2**power + by for power in range(3, 13) for by in (-1, 0, 1))
_MULTIPLES = tuple(128 * times for times in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32))
_WIDTHS = (576, 1536, 2880, 4096, 5120, 7168, 8192, 14336)
_LARGE = (32769, 65537)
_LONG = (16385, 20001, 32769, 65537)
# of which sums have the fewest bits left
_LONG_KINDS = ("constant", "positive")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MANY = (17, 18, 33, 40, 65, 70, 129)
_TRIES = 40
# of the drawn cases, those with two options that no case need have together
_PAIRED = 0.75
# of the two that are refused at the sizes that were drawn with them, those that are left out
_WITHOUT_ROWS = 0.12  # of the cases: one row, as a vector
_GIVEN_UP = 0.2
_LAID_OUT = 0.3  # of the cases, in any other layout
_SCALED = 0.3  # of the cases with packed weights
_ZERO = 0.15  # of the scalar options that are changed
# times as many elements as in all tensors, at most, in weights: they are no tensor of the contract
_WEIGHTS = 8


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a drawn case is made from.

    Attributes:
        workload: its sizes, dtype and options.
        kind: of its values.
        factors: scalar argument -> what the op's own value is multiplied by.
        ignored: in place of the integer that an argument names and tensors hold (ignore_index).
        run: from where to where, as parts of the leading axis, these tensors hold nothing else.
        split: how many parts the leading axis is split into; 1 leaves it, 0 takes it away where
            it is 1 long.
        layout: of the inputs in memory, one of LAYOUTS; None as they are made.
        power: of two, that scales of packed weights are multiplied by.
        gradient: whether the op has one with these options.
    """

    workload: Workload
    kind: str = "normal"
    factors: Mapping[str, float]
    ignored: int | None = None
    run: tuple[float, float] | None = None
    split: int = 1
    layout: str | None = None
    power: int = 0
    gradient: bool = True

    @property
    def name(self) -> str:
        """What it is, in words that make it again."""
        words = [f"drawn {self.workload}"]
        words += [self.kind] if self.kind != "normal" else []
        words += [f"{name}*{factor:.3g}" for name, factor in self.factors.items()]
        words += [f"ignored={self.ignored}"] if self.ignored is not None else []
        words += [f"from={self.run[0]:.3g} to={self.run[1]:.3g}"] if self.run is not None else []
        words += [f"rows={self.split}x"] if self.split > 1 else []
        words += ["without rows"] if not self.split else []
        words += [self.layout] if self.layout is not None else []
        words += [f"scales*2^{self.power}"] if self.power else []
        return " ".join(words)

    def smaller(self) -> Iterator["Drawn"]:
        """The same with less in it, the largest steps first."""
        if self.kind != "normal":
            yield replace(self, kind="normal")
        if self.layout is not None:
            yield replace(self, layout=None)
        if self.power:
            yield replace(self, power=0)
        if self.split != 1:
            yield replace(self, split=1)
        if self.factors:
            yield replace(self, factors={})
        if self.run is not None:
            yield replace(self, run=None)
        for option in self.workload.options:
            kept = {name: each for name, each in self.workload.options.items() if name != option}
            yield replace(self, workload=replace(self.workload, options=kept))
        for axis, size in self.workload.sizes.items():
            for other in dict.fromkeys((1, 2, size // 2, size - 1)):
                if 0 < other < size:
                    sizes = {**self.workload.sizes, axis: other}
                    yield replace(self, workload=replace(self.workload, sizes=sizes))

    def arguments(self, op: Op, seed: int) -> dict[str, Any]:
        """The arguments of the reference, with fresh values."""
        assert op.inputs is not None
        kind = {} if self.kind == "normal" else {"kind": self.kind}
        made = op.inputs(self.workload, seed, "cpu", **kind)
        for name, factor in self.factors.items():
            made[name] = made[name] * factor
        if self.ignored is not None:
            made = _renumbered(made, self.ignored, self.run)
        if self.power:
            made = {name: _scaled(value, self.power) for name, value in made.items()}
        made = _split(op, made, self.split)
        if self.layout is None:
            return made
        inputs = {spec.name for spec in op.of_role("input")}
        return {
            name: lay_out(self.layout, value, at) if name in inputs else value
            for at, (name, value) in enumerate(made.items())
        }

    def case(self, op: Op) -> Case:
        """As a case of the op."""
        return Case(
            name=self.name,
            make=lambda seed: self.arguments(op, seed),
            gradient=self.gradient and self.kind not in NOT_DIFFERENTIABLE,
        )


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
    known = {kind for dtype in _FLOATS for kind in _kinds(op, dtype)}
    found = list[Drawn]()
    for kind in sorted(known) if many else ():
        for _ in range(_TRIES):
            one = _draw_one(op, bases, None, generator, most, elements)
            if one is None or (kind == "largest" and kind not in _kinds(op, one.workload.dtype)):
                continue
            sizes = {**one.workload.sizes, leading[0]: generator.choice(many)}
            one = replace(one, kind=kind, split=1, workload=replace(one.workload, sizes=sizes))
            kept = allowed(op, one) if _elements(op, sizes) <= elements else None
            if kept is not None:
                found.append(kept)
                break
    return tuple(found)


def draw_long(op: Op, seed: int, elements: int, rows: int | None = None) -> tuple[Drawn, ...]:
    """Each axis of the first input very long: of one sign, and all alike.

    With the options of each workload of production.

    Args:
        op, seed, elements, rows: as draw.
    """
    bases, axes = _bases(op), op.of_role("input")[0].axes
    if op.inputs is None or not bases:
        return ()
    generator, found = random.Random(f"long of {seed}"), list[Drawn]()
    by_options = {repr(sorted(each.options.items())): each for each in bases}
    kinds = _LONG_KINDS if _takes_kinds(op) else ("normal",)
    most = _most(op, elements, rows)
    for axis, base, kind in product(axes, by_options.values(), kinds):
        few = {name: generator.choice((1, 2)) for name in base.sizes}
        sizes = {**few, axis: generator.choice(_LONG)}
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
        describe_outputs(op, prepared)
        kept = _called(op, drawn, prepared)
        with warnings.catch_warnings():
            # of arguments that it does not take
            warnings.simplefilter("ignore")
            # last: of sizes that the op refuses it may make something that is very large
            if kept is not None:
                op.reference(**arguments)
    except Exception:  # noqa: BLE001 whatever refuses them, they are no arguments
        return None
    return kept


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
    """Every two options that the op's cases have, alone or not, with each of their values."""
    found = dict[str, list[Any]]()
    for case in op.cases:
        for name, value in case.options.items():
            known = found.setdefault(name, [])
            if value not in known:
                known.append(value)
    pairs = [
        {one: value, other: beside}
        for one, other in combinations(sorted(found), 2)
        for value in found[one]
        for beside in found[other]
    ]
    generator.shuffle(pairs)
    return pairs


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
    for axis in hot:
        kinds = (_BESIDE, _BESIDE, _MULTIPLES, _WIDTHS, _LARGE)
        fitting = [
            size
            for size in generator.choice(kinds)
            if size <= most[axis] and _elements(op, {**sizes, axis: size}) <= elements
        ]
        if fitting:
            sizes[axis] = generator.choice(fitting)
    if _elements(op, sizes) > elements:
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
    numbered = _numbers(arguments)
    ignored = generator.choice((-generator.randint(1, 300), generator.randint(0, 9)))
    ignored = ignored if numbered and generator.random() < 0.7 else None
    begin = generator.choice((0.0, 0.0, generator.random()))
    run = (begin, begin + (1 - begin) * generator.random())
    run = run if ignored is not None and generator.random() < 0.7 else None
    split = generator.choice((1, 1, 2, 3))
    drawn = replace(drawn, factors=factors, ignored=ignored, run=run, split=split)
    if generator.random() < _LAID_OUT:
        drawn = replace(drawn, layout=generator.choice(sorted(LAYOUTS)))
    if any(map(_packed_elements, arguments.values())) and generator.random() < _SCALED:
        drawn = replace(drawn, power=generator.randint(-16, 8))
    leading = op.of_role("input")[0].axes[:1]
    if leading and random.Random(drawn.name).random() < _WITHOUT_ROWS:
        one = replace(workload, sizes={**sizes, leading[0]: 1})
        return replace(drawn, workload=one, split=0)
    return drawn


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
    return tuple(each for each in KINDS if each in kinds)


def _elements(op: Op, sizes: Mapping[str, int]) -> int:
    return sum(prod(sizes.get(axis, 1) for axis in spec.axes) for spec in op.tensors)


def _packed_elements(value: Any) -> int:
    """Of a packed weight, or of several."""
    if isinstance(value, PackedTensor):
        return prod(value.shape)
    if isinstance(value, tuple):
        return sum(map(_packed_elements, cast("tuple[Any, ...]", value)))
    return 0


def _scaled(value: Any, power: int) -> Any:
    """A packed weight, or several, whose scales are 2^power times as large, if they are floats."""
    if isinstance(value, tuple):
        return tuple(_scaled(each, power) for each in cast("tuple[Any, ...]", value))
    if not isinstance(value, PackedTensor) or value.scale.dtype not in _FLOATS:
        return value
    return replace(value, scale=(value.scale.float() * 2.0**power).to(value.scale.dtype))


def _numbers(arguments: Mapping[str, Any]) -> list[str]:
    """Integer arguments that tensors of integers hold: an index that is ignored."""
    tensors = [
        value
        for value in arguments.values()
        if isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32)
    ]
    return [
        name
        for name, value in arguments.items()
        if type(value) is int and value < 0 and any(bool((each == value).any()) for each in tensors)
    ]


def _renumbered(
    arguments: dict[str, Any], to: int, run: tuple[float, float] | None
) -> dict[str, Any]:
    found = dict(arguments)
    for name in _numbers(arguments):
        was = found[name]
        found[name] = to
        for key, value in found.items():
            if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
                continue
            if bool((value == was).any()):
                found[key] = other = torch.where(value == was, to, value)
                if run is not None:
                    begin, end = (int(len(other) * part) for part in run)
                    other[begin:end] = to
    return found


def _split(op: Op, arguments: dict[str, Any], parts: int) -> dict[str, Any]:
    """The leading axis of the first input as two or as none, wherever it leads."""
    leading = op.of_role("input")[0].axes[:1]
    if parts == 1 or not leading:
        return arguments
    found = dict(arguments)
    for spec in op.of_role("input"):
        value = found.get(spec.name)
        if spec.axes[:1] == leading and isinstance(value, Tensor) and value.dim() == len(spec.axes):
            if value.shape[0] % parts if parts else value.shape[0] != 1:
                return arguments
            if not parts:
                found[spec.name] = value[0]
                continue
            found[spec.name] = value.unflatten(0, (parts, value.shape[0] // parts))
    return found
