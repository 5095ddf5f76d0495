"""Configurations: what a judged kernel's launches are made with, besides the tables' choice.

Any shape may come to take any of them: in the interpreter every choice that the tuner has, and
small ones; on a GPU, where some do not fit, those that it made.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tercet.kernel.contract import Implementation, Op
from tercet.kernel.tuned import Configuration, Direction, device_name, table

Configured = tuple[str, str, Direction, Configuration]
"""Op, implementation, direction, options."""
_Space = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Configurations:
    """What launches of an implementation may be made with.

    Attributes:
        op: its op.
        owners: whose configurations they ask for. A candidate may ask for those of the op's own
            implementations, of which it is a changed copy.
        made: implementation, direction and what the tuner chose for this device.
        interpreted: whether everything fits.
    """

    op: Op
    owners: tuple[Implementation, ...]
    made: tuple[tuple[str, str, Configuration], ...]
    interpreted: bool

    @classmethod
    def of(
        cls, op: Op, implementation: Implementation, device: str, interpreted: bool
    ) -> "Configurations":
        """Of the op's own implementation, or of a candidate."""
        own = op.implementations
        entries = () if device == "cpu" else table(op.name, device_name())
        return cls(
            op=op,
            owners=(implementation,) if implementation in own else own,
            made=tuple(
                (each["implementation"], each["direction"], each["configuration"])
                for each in entries
            ),
            interpreted=interpreted,
        )

    def draw(self, seed: str, *, small: bool) -> list[Configured]:
        """One for each direction that has any; where they are interpreted, small ones too."""
        generator, found = random.Random(seed), list[Configured]()
        for owner, direction, space in self._spaces():
            made = [
                chosen for name, way, chosen in self.made if (name, way) == (owner.name, direction)
            ]
            if made:
                found.append((self.op.name, owner.name, direction, generator.choice(made)))
            elif space and self.interpreted:
                chosen = {option: generator.choice(values) for option, values in space.items()}
                for option, values in owner.small_space.items() if small else ():
                    if direction == "forward" or option in space:
                        chosen[option] = generator.choice(values)
                found.append((self.op.name, owner.name, direction, chosen))
        return found

    def _spaces(self) -> Iterator[tuple[Implementation, Direction, _Space]]:
        for owner in self.owners:
            yield owner, "forward", owner.space
            yield owner, "backward", owner.gradient_space
