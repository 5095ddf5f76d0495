"""Accumulators: running sums over the inputs of linears, and which linears share an input."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tercet.compress.algorithm import Statistics
from tercet.compress.calibration.products import add_product, narrow

# rows of a Gram matrix that are summed at a time: near the cores there, large products here
_GRAM_BLOCK = {"cpu": 256, "cuda": 2048}


@dataclass
class Accumulator:
    """Running sums over inputs x [tokens, K] of one shared input.

    Of the Gram matrix only the blocks on and above the diagonal are summed.
    """

    members: tuple[str, ...]
    gram: Tensor
    absmax: Tensor
    abssum: Tensor
    drift: Tensor | None = None
    outputs: dict[str, Tensor] | None = None
    tokens: int = 0

    @classmethod
    def empty(
        cls, members: tuple[str, ...], columns: int, device: torch.device | None = None
    ) -> "Accumulator":
        """Sums over nothing, for inputs of `columns` columns."""
        zeros = torch.zeros(columns, dtype=torch.float32, device=device)
        gram = torch.zeros(columns, columns, dtype=torch.float32, device=device)
        return cls(members, gram, zeros.clone(), zeros.clone())

    def add(
        self,
        x: Tensor,
        teacher: Tensor | None = None,
        outputs: dict[str, Tensor] | None = None,
    ) -> None:
        """Adds x [.., K], and what the uncompressed model has, if that is followed.

        Args:
            x: inputs of the members.
            teacher: what the uncompressed model has in the place of x.
            outputs: in the place of `teacher`, what each member makes of it there, without bias.
        """
        flat = x.detach().float().reshape(-1, x.shape[-1])
        x_narrow = narrow(flat)
        block = _GRAM_BLOCK[flat.device.type]
        for first in range(0, flat.shape[1], block):
            rows = slice(first, first + block)
            add_product(
                self.gram[rows, first:], x_narrow.cut(rows), x_narrow.cut(slice(first, None))
            )
        if outputs is not None:
            self.outputs = self.outputs or {}
            for name, y in outputs.items():
                made = y.detach().float().reshape(len(flat), -1)
                if name not in self.outputs:
                    self.outputs[name] = flat.new_zeros(made.shape[1], flat.shape[1])
                add_product(self.outputs[name], narrow(made), x_narrow)
        elif teacher is not None:
            if self.drift is None:
                self.drift = torch.zeros_like(self.gram)
            apart = teacher.detach().float().reshape(flat.shape) - flat
            add_product(self.drift, narrow(apart), x_narrow)
        magnitude = flat.abs()
        self.absmax = torch.maximum(self.absmax, magnitude.amax(0))
        self.abssum += magnitude.sum(0)
        self.tokens += flat.shape[0]

    def statistics(self) -> Statistics:
        """Means over all tokens, in the memory of the sums, which are lost."""
        gram = self.gram.div_(self.tokens)
        size = _GRAM_BLOCK[gram.device.type]
        for first in range(0, len(gram), size):
            end = first + size
            block = gram[first:end, first:end]
            block.copy_(block.triu() + block.triu(1).T)
            gram[end:, first:end] = gram[first:end, end:].T
        return Statistics(
            gram=gram,
            absmax=self.absmax,
            absmean=self.abssum / self.tokens,
            drift=None if self.drift is None else self.drift.div_(self.tokens),
            outputs={name: made.div_(self.tokens) for name, made in (self.outputs or {}).items()},
        )


@dataclass
class Collector:
    """Groups linears by the tensor they read and accumulates each group's statistics."""

    groups: dict[tuple[str, ...], Accumulator] = field(
        default_factory=dict[tuple[str, ...], Accumulator]
    )

    def add(self, seen: dict[str, Tensor], teacher: dict[str, Tensor]) -> None:
        """Adds the inputs of one batch by linear, and those of the uncompressed model, if any."""
        for members in shared_inputs(seen):
            x = seen[members[0]]
            if members not in self.groups:
                self.groups[members] = Accumulator.empty(members, x.shape[-1], x.device)
            self.groups[members].add(x, teacher.get(members[0]))


def shared_inputs(seen: dict[str, Tensor]) -> list[tuple[str, ...]]:
    """The names of inputs by linear, those of one tensor together, in the order of the first."""
    by_tensor: dict[int, list[str]] = {}
    for name, x in seen.items():
        by_tensor.setdefault(id(x), []).append(name)
    return [tuple(names) for names in by_tensor.values()]
