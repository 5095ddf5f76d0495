"""Recompute: a batch passes a layer once for each group of linears, and holds nothing between.

What all batches hold in the middle of a layer is many times the hidden states: 15 GB before the
last product of Llama-3-8B's MLP, for 262,144 tokens in float32. Running up to each group anew costs
about the layer's arithmetic a second time, and takes the memory of one batch.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from typing import cast

from torch import Tensor, nn

from tercet.compress.calibration.accumulator import shared_inputs
from tercet.compress.calibration.module_hooks import (
    Stop,
    inputs_of,
    one_storage,
    outputs_of,
    transforming,
)
from tercet.models.input_transform import InputTransform
from tercet.models.split_experts import is_expert

Run = Callable[[], Tensor]

Inputs = Iterator[tuple[Tensor, Tensor | None, dict[str, Tensor] | None]]
"""Of a group, batch by batch: its input x [.., K]; the uncompressed model's in the place of x, or
None; or else what each linear makes of that, without bias, [.., N] by name, where that is less."""

Visit = Callable[[tuple[str, ...], Inputs], Mapping[str, InputTransform]]
"""Is told the names of linears that share an input, and that input; gives the transforms of that
input, by name, that they need from now on."""


@dataclass(frozen=True)
class Teacher:
    """The uncompressed model's pass of one batch through the layer.

    Attributes:
        run: calls the layer with that model's hidden states.
        hidden: these, where the layer's output takes their place.
    """

    run: Run
    hidden: Tensor


def pass_in_turns(
    runs: list[Run], teachers: list[Teacher] | None, targets: Mapping[str, nn.Module], visit: Visit
) -> Iterator[Tensor]:
    """Yields each batch's output; the uncompressed model's batches have arrived by then.

    Args:
        runs: one a batch: calls the layer with the compressed model's hidden states.
        teachers: likewise of the uncompressed model, where it is followed.
        targets: the linears by name, still uncompressed.
        visit: called once for each group, in the order of their turns; may replace the weights. Of
            a group that no batch reaches, as the layer is now, the inputs are none.
    """
    weights = _Weights(targets)
    transforms: dict[str, InputTransform] = {}
    turns = _find_turns(runs, targets)
    # up to the last group's inputs is nearly all of a pass: it goes on to the end
    last = turns[-1] if turns and not is_expert(turns[-1][0]) else None
    for members in turns:
        # the uncompressed model may send other tokens to an expert: they do not pair up
        followed = None if is_expert(members[0]) else teachers
        seen = _inputs(members, runs, followed, weights, transforms, arrives=members == last)
        transforms.update(visit(members, seen))
        weights.take_note()
    if last is None:
        with weights.uncompressed():
            for teacher in teachers or ():
                teacher.hidden.copy_(teacher.run())
    for run in runs:
        with transforming(targets, transforms):
            output = run()
        yield output


class _Weights:
    """The linears' own weights and those that have replaced them."""

    def __init__(self, targets: Mapping[str, nn.Module]) -> None:
        self.targets = targets
        self._own = self._held()
        self._now = self._own

    def take_note(self) -> None:
        """Of what the linears hold: that is in place again after `uncompressed`."""
        self._now = self._held()

    @contextmanager
    def uncompressed(self) -> Generator[None]:
        """Within the block, every linear has its own weight."""
        self._put(self._own)
        try:
            yield
        finally:
            self._put(self._now)

    def _held(self) -> dict[str, nn.Parameter]:
        return {name: cast(nn.Parameter, m.weight) for name, m in self.targets.items()}

    def _put(self, weights: dict[str, nn.Parameter]) -> None:
        for name, weight in weights.items():
            self.targets[name].weight = weight


def _find_turns(runs: list[Run], targets: Mapping[str, nn.Module]) -> list[tuple[str, ...]]:
    """The groups in the order in which the layer, still uncompressed, comes to them."""
    turns: dict[tuple[str, ...], None] = {}
    left = set(targets)
    for run in runs:
        with inputs_of(dict(targets), stop=True) as seen, suppress(Stop):
            run()
        for members in shared_inputs(seen):
            # experts that few tokens reach come with a later batch
            if left.issuperset(members):
                turns[members] = None
                left.difference_update(members)
        if not left:
            break
    return list(turns)


def _inputs(
    members: tuple[str, ...],
    runs: list[Run],
    teachers: list[Teacher] | None,
    weights: _Weights,
    transforms: Mapping[str, InputTransform],
    *,
    arrives: bool,
) -> Inputs:
    """What `visit` is told; where the uncompressed model's batches arrive, all of them do."""
    targets = weights.targets
    for run, teacher in zip(runs, teachers or repeat(None), strict=teachers is not None):
        with transforming(targets, transforms):
            x = _reach(run, members[0], targets)
        other: Tensor | None = None
        outputs: dict[str, Tensor] | None = None
        if teacher is not None and (arrives or x is not None):
            linears = {name: targets[name] for name in members}
            with weights.uncompressed():
                other, outputs = _follow(teacher, linears, arrives=arrives)
        if x is not None:
            yield x, other, outputs
        del x, other, outputs


def _follow(
    teacher: Teacher, linears: dict[str, nn.Module], *, arrives: bool
) -> tuple[Tensor | None, dict[str, Tensor] | None]:
    """The input of linears that share one, or where that is less, what they make of it."""
    name = next(iter(linears))
    shapes = [cast(Tensor, linear.weight).shape for linear in linears.values()]
    narrows = sum(rows for rows, _ in shapes) < shapes[0][1]
    if arrives:
        with inputs_of({name: linears[name]}) as seen, outputs_of(linears) as made:
            output = teacher.run()
        other = seen.get(name)
        if other is not None and one_storage(other, teacher.hidden):
            other = other.clone()
        teacher.hidden.copy_(output)
        return (None, made) if narrows and other is not None else (other, None)
    other = _reach(teacher.run, name, linears)
    if other is None or not narrows:
        return other, None
    return None, {name: other @ cast(Tensor, linear.weight).T for name, linear in linears.items()}


def _reach(run: Run, name: str, targets: Mapping[str, nn.Module]) -> Tensor | None:
    """The input [.., K] of that linear; None where the batch does not come to it."""
    with inputs_of({name: targets[name]}, stop=True) as seen, suppress(Stop):
        run()
    return seen.get(name)
