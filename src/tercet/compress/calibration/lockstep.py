"""Lockstep: all batches pass a layer at once, and wait for one another before each linear.

So what a linear's inputs are over all batches is known when its turn comes, it can be replaced, and
the pass goes on with what replaced it. A batch is a greenlet: it stops in the middle of the layer's
forward, whatever that is, and holds what it computed so far.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, cast

import greenlet
from torch import Tensor, nn

from tercet.models.input_transform import InputTransform

Visit = Callable[[tuple[str, ...], dict[int, Tensor]], Mapping[str, InputTransform]]
"""Is told the names of linears that share an input, and that input [.., K] by batch; gives the
transforms of that input, by name, that they need from now on."""

_greenlets = cast(Any, greenlet)


class _Batch:
    """One batch on its way through the layer; `waits` is None once it has arrived."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._greenlet = _greenlets.greenlet(run)
        self.waits: tuple[str, ...] | None = None
        self.input: Tensor | None = None
        self.output: Tensor | None = None

    def go_on(self) -> None:
        """To the next linear that was not visited, or to the end."""
        self.input = None
        found = self._greenlet.switch()
        if self._greenlet.dead:
            self.waits, self.output = None, found
        else:
            self.waits, self.input = found


def pass_through(
    runs: list[Callable[[], Tensor]],
    targets: Mapping[str, nn.Module],
    groups: Mapping[str, tuple[str, ...]],
    visit: Visit,
) -> list[Tensor]:
    """The outputs of all batches.

    A batch that comes to a linear after the others passed it (an expert that few tokens reach, in
    another order) is not waited for.

    Args:
        runs: one a batch: calls the layer.
        targets: the linears by name.
        groups: of each linear the names of all that share its input, in the order of their turns.
        visit: called once for each group, before the first of its linears is called.
    """
    visited: set[tuple[str, ...]] = set()
    transforms: dict[str, InputTransform] = {}

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
        members = groups.get(name, (name,))

        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if members not in visited:
                _greenlets.getcurrent().parent.switch((members, arguments[0]))
            if name not in transforms:
                return None
            return (transforms[name](arguments[0]), *arguments[1:])

        return hook

    turns = list(dict.fromkeys(groups.values()))
    batches = [_Batch(run) for run in runs]
    with ExitStack() as stack:
        for name, module in targets.items():
            stack.callback(module.register_forward_pre_hook(hook_for(name)).remove)
        for batch in batches:
            batch.go_on()
        while waiting := {batch.waits: None for batch in batches if batch.waits is not None}:
            turns += [members for members in waiting if members not in turns]
            members = min(waiting, key=turns.index)
            here = {i: batch for i, batch in enumerate(batches) if batch.waits == members}
            inputs = {i: batch.input for i, batch in here.items() if batch.input is not None}
            transforms.update(visit(members, inputs))
            visited.add(members)
            for batch in here.values():
                batch.go_on()
    return [cast(Tensor, batch.output) for batch in batches]
