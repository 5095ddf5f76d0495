"""Drawn: what a drawn case is made from, by name, and how it is made smaller."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, cast

import torch
from torch import Tensor

from tercet.formats import PackedTensor
from tercet.harness.workloads.forms import FORMS, meet
from tercet.harness.workloads.layouts import lay_out
from tercet.kernel.cases import NOT_DIFFERENTIABLE
from tercet.kernel.contract import Case, Op, Workload

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """What is done to random incoming gradients.

    Attributes:
        power: of two, that they are multiplied by: a loss is a mean, and may be scaled.
        masked: of how many rows the last alone is not 0, as of tokens that no loss counts; 0: no
            row is.
        layout: in memory, one of LAYOUTS; None as they are made.
        positive: none is below 0, so sums of them grow.
    """

    power: int = 0
    masked: int = 0
    positive: bool = False
    layout: str | None = None

    def __call__(self, gradient: Tensor, at: int) -> Tensor:
        """The gradient of output `at`, changed."""
        changed = _scaled(gradient.abs() if self.positive else gradient, self.power)
        if self.masked and changed.dim():
            changed[torch.arange(len(changed)) % self.masked != self.masked - 1] = 0
        return changed if self.layout is None else lay_out(self.layout, changed, at)

    @property
    def words(self) -> tuple[str, ...]:
        """What it does, in words that make it again."""
        return (
            *(["dy positive"] if self.positive else []),
            *([f"dy*2^{self.power}"] if self.power else []),
            *([f"dy masked {self.masked}"] if self.masked else []),
            *([f"dy {self.layout}"] if self.layout is not None else []),
        )


PLAIN = Incoming()


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a drawn case is made from.

    Attributes:
        workload: its sizes, dtype and options.
        kind: of its values.
        factors: scalar argument -> what the op's own value is multiplied by.
        numbers: scalar argument -> what it is instead.
        ignored: in place of the integer that an argument names and tensors hold (ignore_index).
        run: from where to where, as parts of the leading axis, these tensors hold nothing else and
            masks leave all out.
        order: of indices of rows, one of ORDERS; None as they are made.
        split: how many parts the leading axis is split into; 1 leaves it, 0 takes it away where
            it is 1 long.
        layout: of the inputs in memory, one of LAYOUTS; None as they are made.
        powers: argument -> power of two, that its numbers, or the scales of a packed weight, are
            multiplied by; -inf: they are 0.
        dtypes: argument -> another dtype that it is in.
        forms: argument -> what it holds instead, one of FORMS.
        meeting: two arguments, or one twice, in which special values meet (see `meet`).
        absent: an optional input that is left out.
        incoming: what is done to the random incoming gradients.
        gradient: whether the op has one with these options.
    """

    workload: Workload
    kind: str = "normal"
    factors: Mapping[str, float]
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    ignored: int | None = None
    run: tuple[float, float] | None = None
    order: str | None = None
    split: int = 1
    layout: str | None = None
    powers: Mapping[str, float] = field(default_factory=dict[str, float])
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict[str, torch.dtype])
    forms: Mapping[str, str] = field(default_factory=dict[str, str])
    meeting: tuple[str, str] | None = None
    absent: str | None = None
    incoming: Incoming = PLAIN
    gradient: bool = True

    @property
    def name(self) -> str:
        """What it is, in words that make it again."""
        words = [f"drawn {self.workload}"]
        words += [self.kind] if self.kind != "normal" else []
        words += [f"{name}*{factor:.3g}" for name, factor in self.factors.items()]
        words += [f"{name}={number:.9g}" for name, number in self.numbers.items()]
        words += [f"ignored={self.ignored}"] if self.ignored is not None else []
        words += [f"from={self.run[0]:.3g} to={self.run[1]:.3g}"] if self.run is not None else []
        words += [f"{self.order} indices"] if self.order is not None else []
        words += [f"rows={self.split}x"] if self.split > 1 else []
        words += ["without rows"] if not self.split else []
        words += [self.layout] if self.layout is not None else []
        words += [
            f"{name}*2^{power}" if power > -inf else f"{name}*0"
            for name, power in self.powers.items()
        ]
        words += [f"{name} in {str(dtype)[6:]}" for name, dtype in self.dtypes.items()]
        words += [f"{name} {form}" for name, form in self.forms.items()]
        words += [f"{' meets '.join(self.meeting)}"] if self.meeting is not None else []
        words += [f"no {self.absent}"] if self.absent is not None else []
        words += self.incoming.words
        return " ".join(words)

    def smaller(self) -> Iterator["Drawn"]:
        """The same with less in it, the largest steps first."""
        if self.kind != "normal":
            yield replace(self, kind="normal")
        if self.layout is not None:
            yield replace(self, layout=None)
        if self.powers:
            yield replace(self, powers={})
        if self.dtypes:
            yield replace(self, dtypes={})
        if self.forms:
            yield replace(self, forms={})
        if self.meeting is not None:
            yield replace(self, meeting=None)
        if self.absent is not None:
            yield replace(self, absent=None)
        if self.incoming != PLAIN:
            yield replace(self, incoming=PLAIN)
        if self.order is not None:
            yield replace(self, order=None)
        if self.split != 1:
            yield replace(self, split=1)
        if self.factors:
            yield replace(self, factors={})
        if self.numbers:
            yield replace(self, numbers={})
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
        made |= self.numbers
        if self.order is not None:
            made = _ordered(op, made, self.order, self.workload.sizes, seed)
        if self.ignored is not None:
            made = _renumbered(made, self.ignored, self.run)
        if self.run is not None:
            made = {name: _flagged(value, self.run) for name, value in made.items()}
        for name, power in self.powers.items():
            made[name] = _scaled(made[name], power)
        for name, dtype in self.dtypes.items():
            made[name] = _in_dtype(made[name], dtype, seed)
        for at, (name, form) in enumerate(self.forms.items()):
            made[name] = FORMS[form](made[name], seed + at)
        if self.meeting is not None:
            one, other = self.meeting
            second = made[other] if other != one else None
            made[one], made[other] = meet(made[one], second, seed)
        if self.absent is not None:
            made[self.absent] = None
        made = split_rows(op, made, self.split)
        if self.layout is None:
            return made
        inputs = {spec.name for spec in op.of_role("input")}
        try:
            return {
                name: lay_out(self.layout, value, at) if name in inputs else value
                for at, (name, value) in enumerate(made.items())
            }
        except MemoryError:
            return made  # a small machine has no room for rows that lie far apart

    def case(self, op: Op) -> Case:
        """As a case of the op."""
        return Case(
            name=self.name,
            make=lambda seed: self.arguments(op, seed),
            gradient=self.gradient and self.kind not in NOT_DIFFERENTIABLE,
            incoming=None if self.incoming == PLAIN else self.incoming,
        )


def _scaled(value: Any, power: float) -> Any:
    """Numbers, or the scales of packed weights, 2^power times as large, where they are floats."""
    if isinstance(value, tuple):
        return tuple(_scaled(each, power) for each in cast("tuple[Any, ...]", value))
    if isinstance(value, PackedTensor):
        return replace(value, scale=_scaled(value.scale, power))
    if not isinstance(value, Tensor) or value.dtype not in FLOATS:
        return value
    return (value.double() * 2.0**power).to(value.dtype)


def _in_dtype(value: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """The tensor in another dtype, with digits that its own one has no room for.

    What is rounded back to its own one must lose something.
    """
    own = torch.finfo(value.dtype).eps
    if own <= torch.finfo(dtype).eps:
        return value.to(dtype)
    generator = torch.Generator(value.device).manual_seed(seed)
    shape = value.shape if value.numel() and not (value == value.flatten()[0]).all() else ()
    digits = torch.rand(shape, generator=generator, device=value.device, dtype=torch.float64) - 0.5
    return (value.double() * (1 + own * digits)).to(dtype)


def numbers_in(arguments: Mapping[str, Any]) -> list[str]:
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
    for name in numbers_in(arguments):
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


def _ordered(
    op: Op, arguments: dict[str, Any], order: str, sizes: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """Indices of rows in that order, from a first one on where they run."""
    found = dict(arguments)
    for spec in op.of_role("input"):
        value = found.get(spec.name)
        if spec.chooses is not None and isinstance(value, Tensor) and value.numel():
            made = ORDERS[order](value.flatten(), sizes[spec.chooses], seed)
            found[spec.name] = made.to(value.dtype).clone().reshape(value.shape)
    return found


def _run_of(indices: Tensor, rows: int, seed: int) -> Tensor:
    """Each one more than the one before, and from the first row on again behind the last."""
    return (torch.arange(len(indices)) + seed) % rows


def _run_of_others(indices: Tensor, rows: int, seed: int) -> Tensor:
    """Ends of a run that fits, and between them any of its rows, some more than once."""
    count = min(len(indices), rows)
    first = seed % (rows - count + 1)
    made = first + indices % count
    made[0], made[-1] = first, first + count - 1
    return made


def _shuffled_run(indices: Tensor, rows: int, seed: int) -> Tensor:
    """Ends of a run that fits, and between them each of its rows once, in any order."""
    made = _run_of(indices, rows, seed % max(1, rows - len(indices) + 1))
    between = torch.randperm(max(0, len(made) - 2), generator=torch.Generator().manual_seed(seed))
    made[1:-1] = made[1:-1][between]
    return made


def _edges_of(indices: Tensor, rows: int, seed: int) -> Tensor:
    """Multiples of powers of two, where tiles begin, and those before them."""
    at = torch.arange(len(indices))
    step = 2 ** (6 + (at + seed) % 8)
    return (step * (1 + at // 2) - at % 2) % rows


ORDERS: Mapping[str, Callable[[Tensor, int, int], Tensor]] = {
    "equal": lambda indices, rows, seed: indices[:1].expand_as(indices),
    "ascending": lambda indices, rows, seed: indices.sort().values,
    "descending": lambda indices, rows, seed: indices.sort(descending=True).values,
    "run of": _run_of,
    "run of other": _run_of_others,
    "shuffled run of": _shuffled_run,
    "edges of": _edges_of,
}
"""Of indices of rows, as callers have them: padding, a range, a range that only seems to be one.

And beside where tiles begin.
"""


def _flagged(value: Any, run: tuple[float, float]) -> Any:
    """A mask that leaves out a run of the leading axis, too; anything else as it is."""
    if not isinstance(value, Tensor) or value.dtype != torch.bool or not value.dim():
        return value
    begin, end = (int(len(value) * part) for part in run)
    changed = value.clone()
    changed[begin:end] = False
    return changed


def split_rows(op: Op, arguments: dict[str, Any], parts: int) -> dict[str, Any]:
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
