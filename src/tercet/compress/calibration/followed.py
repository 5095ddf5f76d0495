"""What the uncompressed model's linears see in one layer, until the compressed one's are known."""

from dataclasses import dataclass, field
from math import inf

from torch import Tensor

from tercet.compress.algorithm import Statistics
from tercet.compress.calibration.accumulator import Accumulator, shared_inputs
from tercet.compress.calibration.module_hooks import one_storage
from tercet.models.split_experts import is_expert


@dataclass
class Followed:
    """What the uncompressed model's linears see in one layer.

    Attributes:
        groups: of each linear the names of all that share its input, in the order of their turns.
        inputs: of each group that input [.., K] by batch, where `outputs` does not have the group.
        outputs: of each linear what it makes of that, without bias, [.., N] by batch: where all of
            a group make fewer columns than they read.
    """

    groups: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    inputs: dict[tuple[str, ...], list[Tensor]] = field(
        default_factory=dict[tuple[str, ...], list[Tensor]]
    )
    outputs: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])

    def group(self, seen: dict[str, Tensor]) -> list[tuple[str, ...]]:
        """Takes note of which linears share an input in one batch, and returns those."""
        found = shared_inputs(seen)
        for members in found:
            for name in members:
                self.groups.setdefault(name, members)
        return found

    def add(self, seen: dict[str, Tensor], made: dict[str, Tensor], hidden: Tensor) -> None:
        """Adds a batch: inputs, outputs of what makes fewer columns, and the layer's own input."""
        for members in self.group(seen):
            # the uncompressed model may send other tokens to an expert: they do not pair up
            if is_expert(members[0]):
                continue
            x = seen[members[0]]
            if sum(made[name].shape[-1] if name in made else inf for name in members) < x.shape[-1]:
                for name in members:
                    self.outputs.setdefault(name, []).append(made[name])
                continue
            # hidden will be overwritten, and BERT's queries read it itself
            kept = x.clone() if one_storage(x, hidden) else x
            self.inputs.setdefault(members, []).append(kept)

    def statistics(self, members: tuple[str, ...], inputs: dict[int, Tensor]) -> Statistics:
        """Of a group whose inputs in the compressed model, by batch, are these."""
        columns = next(iter(inputs.values())).shape[-1]
        sums = Accumulator.empty(members, columns)
        teacher = self.inputs.pop(members, None)
        made = {name: self.outputs.pop(name) for name in members if name in self.outputs}
        for batch, x in inputs.items():
            outputs = {name: parts[batch] for name, parts in made.items()}
            sums.add(x, None if teacher is None else teacher[batch], outputs or None)
        return sums.statistics()
